//! A request in any dialect becomes a chat request or a clear refusal, and any answer can be rendered for it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rollcage_dialect::chat::{Delta, Rewrite, deltas, prepare, read_reply};
use rollcage_dialect::gemini::ResponseEncoding;
use rollcage_dialect::sse::Splitter;
use rollcage_dialect::{Render, anthropic, gemini, responses};
use serde_json::Value;

/// What answers a request that comes without an answer.
const REPLY: &[u8] = br#"{"choices":[{"delta":{"reasoning_content":"hm","content":"hi"},"finish_reason":null}]}
{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"ls","arguments":"{}"}}]}}]}
{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

fuzz_target!(|bytes: &[u8]| {
    // A real request is an input as it stands; behind a zero byte comes what answers it.
    let choice = bytes.len() as u8;
    let cut = bytes.iter().position(|byte| *byte == 0);
    let (request, reply) = cut.map_or((bytes, REPLY), |cut| (&bytes[..cut], &bytes[cut + 1..]));
    let translated: Option<(Vec<u8>, Box<dyn Render>)> = match choice % 4 {
        0 => responses::to_chat(request)
            .ok()
            .map(|translation| (translation.chat, Box::new(translation.answer) as _)),
        1 => anthropic::to_chat(request)
            .ok()
            .map(|translation| (translation.chat, Box::new(translation.answer) as _)),
        2 => gemini::to_chat(request, "model", ResponseEncoding::Events)
            .ok()
            .map(|translation| (translation.chat, Box::new(translation.answer) as _)),
        _ => {
            from_chat(request, reply);
            None
        }
    };
    let Some((chat, mut render)) = translated else {
        return;
    };
    prepare(&chat.into(), &Rewrite::default()).expect("a translation is a chat request");
    let reply = String::from_utf8_lossy(reply);
    let whole = render.whole(&read_reply(&reply, choice & 4 != 0));
    serde_json::from_slice::<Value>(&whole).expect("an answer is JSON");
    check_stream(&mut *render, &reply);
});

/// What is rendered is a whole number of events, each with JSON in it.
fn check_stream(render: &mut dyn Render, reply: &str) {
    let mut stream = render.start();
    for delta in reply.lines().flat_map(deltas) {
        if !matches!(delta, Delta::Finish(_)) {
            stream.extend(render.push(&delta));
        }
    }
    stream.extend(render.keep_alive());
    stream.extend(render.push(&Delta::Finish("stop".to_owned())));
    stream.extend(render.finish());
    let mut splitter = Splitter::new(1 << 20);
    let events = splitter.push(&stream).expect("events of a usual size");
    for data in events.iter().filter_map(|event| event.data.as_deref()) {
        assert!(
            data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(),
            "{data}"
        );
    }
    assert!(!splitter.finish().expect("it has an end").is_torn);
}

/// The other way: an upstream that speaks Anthropic.
fn from_chat(request: &[u8], reply: &[u8]) {
    let thoughts = anthropic::Thoughts::default();
    if let Ok(asked) = anthropic::from_chat_request(request, &thoughts) {
        serde_json::from_slice::<Value>(&asked.body).expect("a request is JSON");
    }
    let reply = String::from_utf8_lossy(reply);
    for is_stream in [false, true] {
        let _ = anthropic::read_message(&reply, is_stream).deltas();
    }
}
