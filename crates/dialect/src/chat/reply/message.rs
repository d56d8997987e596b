//! Reads what a stored answer says, and nothing else of it.

use super::{Members, Message, WHOLE, elements, events};

/// Only what a stored answer says, without its tokens: several times faster than [`super::read_reply`].
pub fn read_message(body: &str, is_stream: bool) -> Message {
    let mut message = Message::assistant();
    let mut read = |text: &str, name: &str| {
        let members = Members::read(text);
        let choices = members.as_ref().and_then(|it| it.get("choices"));
        for choice in choices.and_then(elements).unwrap_or_default() {
            if let Some(choice) = Members::read(choice)
                && choice.value("index").unwrap_or(0_u64) == 0
                && let Some(members) = choice.get(name).and_then(Members::read)
            {
                message.read(&members, name == WHOLE);
            }
        }
    };
    if is_stream && !body.trim_start().starts_with('{') {
        events(body).iter().for_each(|data| read(data, "delta"));
    } else {
        read(body, WHOLE);
    }
    message
}
