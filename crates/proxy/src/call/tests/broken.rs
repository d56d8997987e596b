//! Answers with a good status that are none: asked again while nothing of them has reached the agent, else broken off.

use super::*;

const CUT: &str = r#"{"choices":[{"message":{"role":"assistant","content":"hal"#;
const HALF_PAIR: &str =
    r#"{"choices":[{"message":{"role":"assistant","content":"\ud800"},"finish_reason":"stop"}]}"#;
const NO_MESSAGE: &str =
    r#"{"choices":[{"finish_reason":"stop","token_ids":[1]}],"prompt_token_ids":[7]}"#;
const ERROR: &str = r#"{"error":{"message":"upstream fell over","code":502}}"#;

fn patient(mode: OutputMode, answers: Vec<ScriptedAnswer>) -> Setup {
    let mut setup = Setup::new(mode, answers);
    setup.settings.upstream_patience = Duration::from_secs(60);
    setup
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_that_is_none_is_asked_for_again_and_never_passed_on() {
    for (body, why) in [
        ("", "the answer is none: it is not valid JSON"),
        ("{broken", "the answer is none: it is not valid JSON"),
        (CUT, "the answer is none: it is not valid JSON"),
        (HALF_PAIR, "the answer is none: it is not valid JSON"),
        (r#"{"choices":[]}"#, "the answer is none: it has no choices"),
        (NO_MESSAGE, "the answer is none: its choice has no message"),
        (ERROR, "the answer is an error: upstream fell over"),
    ] {
        for mode in [OutputMode::Whole, OutputMode::Replayed] {
            for dialect in [Dialect::Chat, Dialect::Anthropic] {
                let of = |setup| Setup { dialect, ..setup };
                let bad = || json(200, body);
                let seen = of(Setup::new(mode, vec![bad()])).run().await;
                assert_eq!(seen.agent, format!("424 because {why}"), "{body}");
                assert_eq!(seen.calls, "AnswerBroken", "{body}");
                let seen = of(patient(mode, vec![bad(), bad(), good(mode)]))
                    .run()
                    .await;
                assert_eq!(
                    (seen.agent.as_str(), seen.requests.len()),
                    ("200 \"ok\"", 3)
                );
                assert_eq!(seen.calls, "answered", "{body}");
            }
        }
    }
}

const BAD_EVENTS: [&str; 5] = [
    r#"{"choices":[{"delta":"ok"}]}"#,
    "no json",
    r#"{"choices":[{"delta":{"content":"hal"#,
    r#"{"choices":[{"delta":{"content":"\ud800"}}]}"#,
    "null",
];

#[tokio::test(start_paused = true)]
async fn a_stream_with_an_event_that_nobody_can_read_is_never_whole() {
    let mode = OutputMode::Live;
    for bad in BAD_EVENTS {
        for dialect in [Dialect::Chat, Dialect::Anthropic] {
            let of = |answers| Setup {
                dialect,
                ..patient(mode, answers)
            };
            // In one piece with what comes before, nothing of it has been passed on.
            let ScriptedAnswer::Response(mut joined) = stream(Vec::new()) else {
                unreachable!("a stream is a response");
            };
            let text = format!("data: {WORD}\n\ndata: {bad}\n\n");
            joined.body.push_back(BodyStep::Bytes(text.into()));
            for first in [
                stream(events(&[bad, STOP, "[DONE]"])),
                ScriptedAnswer::Response(joined),
            ] {
                let seen = of(vec![first, good(mode)]).run().await;
                assert_eq!(
                    (seen.agent.as_str(), seen.requests.len()),
                    ("200 \"ok\"", 2),
                    "{bad}"
                );
                assert_eq!(seen.calls, "answered");
            }
            let late = stream(events(&[WORD, bad, STOP, "[DONE]"]));
            let seen = of(vec![late]).run().await;
            let is_broken = (seen.agent).starts_with("200 \"ok\", broken: the stream has an event");
            assert!(is_broken, "{bad}: {}", seen.agent);
            assert!(
                seen.record.contains("that nobody can read"),
                "{}",
                seen.record
            );
            assert_eq!(
                (seen.calls.as_str(), seen.requests.len()),
                ("AnswerBroken", 1)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_before_it_says_anything_is_asked_for_again() {
    let mode = OutputMode::Live;
    let empty = stream(events(&[r#"{"choices":[]}"#, "[DONE]"]));
    let seen = patient(mode, vec![empty, good(mode)]).run().await;
    assert_eq!(
        (seen.agent.as_str(), seen.requests.len()),
        ("200 \"ok\"", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_text_are_not_passed_on() {
    let mode = OutputMode::Live;
    let bytes = b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n";
    let bad = stream(vec![BodyStep::Bytes(Bytes::from_static(bytes))]);
    let seen = patient(mode, vec![bad, good(mode)]).run().await;
    assert_eq!(
        (seen.agent.as_str(), seen.requests.len()),
        ("200 \"ok\"", 2)
    );
}

/// What is only ours may be wrong: the agent does not see it.
#[tokio::test(start_paused = true)]
async fn a_logprob_that_is_no_number_spoils_nobodys_answer() {
    let logprobs = r#""logprobs":{"content":[{"token":"ok","logprob":NaN}]}"#;
    let word = format!(r#"{{"choices":[{{"delta":{{"content":"ok"}},{logprobs}}}]}}"#);
    let whole = WHOLE.replace("\"token_ids\":[1]", logprobs);
    for (mode, answer) in [
        (OutputMode::Live, stream(events(&[&word, STOP, "[DONE]"]))),
        (OutputMode::Whole, json(200, &whole)),
    ] {
        let seen = Setup::new(mode, vec![answer]).run().await;
        assert_eq!(
            (seen.agent.as_str(), seen.calls.as_str()),
            ("200 \"ok\"", "answered")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_anthropic_endpoint_that_answers_nonsense_is_asked_again() {
    let start = r#"{"type":"message_start","message":{"id":"m","usage":{"input_tokens":3}}}"#;
    let text =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ok"}}"#;
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#;
    let stop = r#"{"type":"message_stop"}"#;
    let whole =
        r#"{"type":"message","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn"}"#;
    for dialect in [Dialect::Anthropic, Dialect::Chat] {
        let of = |mode, answers| Setup {
            dialect,
            endpoint: EndpointDialect::Anthropic,
            ..patient(mode, answers)
        };
        for bad in [
            "{broken",
            r#"{"type":"message"}"#,
            r#"{"type":"error","error":{"type":"api_error","message":"m"}}"#,
            r#"{"type":"message","content":[{"type":"text","text":"\ud800"}],"stop_reason":"end_turn"}"#,
        ] {
            let answers = vec![json(200, bad), json(200, whole)];
            let seen = of(OutputMode::Whole, answers).run().await;
            assert_eq!(
                (seen.agent.as_str(), seen.requests.len()),
                ("200 \"ok\"", 2),
                "{bad}"
            );
        }
        for bad in [
            "{broken",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","te"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\ud800"}}"#,
        ] {
            let early = stream(events(&[bad]));
            let good = stream(events(&[start, text, end, stop, "[DONE]"]));
            let seen = of(OutputMode::Live, vec![early, good]).run().await;
            assert_eq!(
                (seen.agent.as_str(), seen.requests.len()),
                ("200 \"ok\"", 2),
                "{bad}"
            );
            let late = stream(events(&[start, text, bad, end, stop]));
            let seen = of(OutputMode::Live, vec![late]).run().await;
            assert!(
                seen.agent.contains("broken: the stream has an event"),
                "{}",
                seen.agent
            );
            assert_eq!(seen.calls, "AnswerBroken", "{bad}");
        }
    }
}

/// SGLang and vLLM begin some streams, with status 200, before they look at the request.
#[tokio::test(start_paused = true)]
async fn a_refusal_behind_a_good_status_is_a_refusal() {
    let overflow = r#"{"error":{"object":"error","message":"The input (61709 tokens) is longer than the model's context length (40960 tokens).","type":"BadRequestError","param":null,"code":400}}"#;
    for mode in MODES {
        let answer = match mode {
            OutputMode::Live => stream(events(&[overflow, "[DONE]"])),
            OutputMode::Whole | OutputMode::Replayed => json(200, overflow),
        };
        let seen = patient(mode, vec![answer.clone()]).run().await;
        let says = "200 \"The conversation no longer fits the model's context. I stop here.\"";
        assert_eq!(
            (seen.agent.as_str(), seen.requests.len()),
            (says, 1),
            "{mode:?}"
        );
        assert_eq!(seen.calls, "stopped by context");
        let setup = Setup {
            on_overflow: OnOverflow::PassOn,
            ..patient(mode, vec![answer])
        };
        let seen = setup.run().await;
        assert!(
            seen.agent.starts_with("400 The input (61709 tokens)"),
            "{}",
            seen.agent
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_alternatives_are_asked_for_than_an_endpoint_gives() {
    let error = |max: u32| {
        let text = format!(
            "Requested sample logprobs of 5, which is greater than max allowed: {max} (parameter=logprobs, value=5)"
        );
        format!(
            r#"{{"error":{{"message":"{text}","type":"BadRequestError","param":"logprobs","code":400}}}}"#
        )
    };
    for (mode, max) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 3)]) {
        let refusal = match mode {
            OutputMode::Live => stream(events(&[&error(max), "[DONE]"])),
            OutputMode::Whole | OutputMode::Replayed => json(400, &error(max)),
        };
        let mut setup = Setup::new(mode, vec![refusal, good(mode)]);
        setup.settings.top_logprobs = 5;
        let seen = setup.run().await;
        assert_eq!(
            (seen.agent.as_str(), seen.calls.as_str()),
            ("200 \"ok\"", "answered")
        );
        let asked = seen.requests.iter().map(|body| {
            let body: Value = serde_json::from_slice(body).unwrap();
            (body["top_logprobs"].as_u64(), body["logprobs"] == true)
        });
        let expect = [(Some(5), true), (Some(u64::from(max)), true)];
        assert_eq!(asked.collect::<Vec<_>>(), expect, "{mode:?}");
    }
}
