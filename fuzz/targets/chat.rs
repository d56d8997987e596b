//! What is sent for any request is JSON that holds every member we did not mean to change, and any answer can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rollcage_dialect::chat::{
    AddedFields, CaptureMode, ChatEvent, Rewrite, Sampling, last_usage, prepare, read_reply,
    requested_max_tokens, strip_body,
};
use serde_json::{Map, Value};

fuzz_target!(|body: &[u8]| {
    // From the length, so that a real body is an input as it stands.
    let flags = body.len() as u8;
    ask(flags, body);
    answer(flags, body);
});

fn ask(flags: u8, body: &[u8]) {
    let has = |bit: u8| flags & (1 << bit) != 0;
    let rewrite = Rewrite {
        model: has(0).then(|| "served".to_owned()),
        tokens_max: has(1).then_some(64),
        is_thinking_disabled: has(2),
        capture: if has(3) {
            CaptureMode::Tokens
        } else {
            CaptureMode::Off
        },
        is_stream_off: has(4),
        sampling: has(5).then_some(Sampling { temperature: 1.0 }),
        ..Rewrite::default()
    };
    let _ = requested_max_tokens(body);
    let Ok(prepared) = prepare(&body.to_vec().into(), &rewrite) else {
        return;
    };
    // Only the top level is read on the way: what is wrong deeper down is for the endpoint to refuse.
    let Ok(asked) = serde_json::from_slice::<Map<String, Value>>(body) else {
        return;
    };
    let sent = prepared.body.concat();
    let sent: Map<String, Value> = serde_json::from_slice(&sent).expect("sent as JSON");
    for (name, value) in &asked {
        if !prepared.set.contains_key(name) && !prepared.removed.contains(name) {
            assert_eq!(sent.get(name), Some(value), "{name}");
        }
    }
    for (name, value) in &prepared.set {
        assert_eq!(sent.get(name), Some(value), "{name}");
    }
    assert!(prepared.removed.iter().all(|name| !sent.contains_key(name)));
}

fn answer(flags: u8, body: &[u8]) {
    let has = |bit: u8| flags & (1 << bit) != 0;
    let text = String::from_utf8_lossy(body);
    let added = AddedFields {
        logprobs: has(0),
        top_logprobs: has(1),
        token_ids: has(2),
        usage: has(3),
        reasoning: has(5),
    };
    let reply = read_reply(&text, has(4));
    let _ = (reply.deltas(), last_usage(body));
    let (stripped, _) = strip_body(body, &added);
    if serde_json::from_slice::<Value>(body).is_ok() {
        serde_json::from_slice::<Value>(stripped.as_deref().unwrap_or(body))
            .expect("what was JSON stays JSON");
    }
    let event = ChatEvent::read(&text);
    let _ = (event.kind(), event.usage(), event.deltas());
    let _ = event.strip(&added);
}
