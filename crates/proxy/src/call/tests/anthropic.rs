//! Endpoints with the Anthropic API, called by agents of the same and of another dialect; and errors in mid-stream.

use super::*;

const START: &str = r#"{"type":"message_start","message":{"id":"m","usage":{"input_tokens":3}}}"#;
const TEXT: &str =
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ok"}}"#;
const BLOCK: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const END: &str =
    r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;
const ERROR: &str =
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"no more"}}"#;
const WHOLE: &str = r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}"#;

async fn run(dialect: Dialect, mode: OutputMode, answer: ScriptedAnswer) -> CallResult {
    let setup = Setup {
        dialect,
        endpoint: EndpointDialect::Anthropic,
        ..Setup::new(mode, vec![answer])
    };
    setup.run().await
}

/// There are no token ids that a stream could lose, so streams are never replayed.
#[tokio::test(start_paused = true)]
async fn an_endpoint_of_another_dialect_is_called_in_its_own() {
    for dialect in [Dialect::Anthropic, Dialect::Chat] {
        for mode in [OutputMode::Live, OutputMode::Replayed] {
            let answer = stream(events(&[START, BLOCK, TEXT, END, STOP]));
            let seen = run(dialect, mode, answer).await;
            assert_eq!(seen.agent, "200 \"ok\"", "{dialect:?}");
            assert_eq!(seen.record, "200 stream no error");
        }
        let seen = run(dialect, OutputMode::Whole, json(200, WHOLE)).await;
        assert_eq!(seen.agent, "200 \"ok\"", "{dialect:?}");
        assert_eq!(seen.calls, "answered");
        let refused = json(400, ERROR);
        let seen = run(dialect, OutputMode::Whole, refused).await;
        assert_eq!(seen.agent, "400 no more", "{dialect:?}");
    }
}

/// Chat has no error event that every agent recognises, so for chat agents the connection breaks too.
#[tokio::test(start_paused = true)]
async fn an_error_in_mid_stream_is_reported() {
    let answer = || stream(events(&[START, BLOCK, TEXT, ERROR]));
    for (dialect, expect) in [
        (Dialect::Anthropic, "200 \"ok\", unfinished"),
        (Dialect::Chat, "200 \"ok\", broken: no more"),
    ] {
        let seen = run(dialect, OutputMode::Live, answer()).await;
        assert_eq!(seen.agent, expect, "{dialect:?}");
        assert_eq!(seen.record, "200 stream no more");
        assert_eq!(seen.calls, "EndpointError");
    }
    let error = r#"{"error":{"message":"no more","code":400}}"#;
    let setup = Setup::new(OutputMode::Live, vec![stream(events(&[WORD, error]))]);
    let seen = setup.run().await;
    assert_eq!(seen.agent, "200 \"ok\", broken: no more");
    assert_eq!(seen.record, "200 stream no more");
}
