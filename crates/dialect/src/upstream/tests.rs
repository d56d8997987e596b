use super::*;

const ALL: AddedFields = AddedFields {
    logprobs: true,
    top_logprobs: true,
    token_ids: true,
    usage: true,
    reasoning: false,
};

/// The output of a stream, and the kinds of its events.
fn read(
    dialect: EndpointDialect,
    view: StreamView,
    stream: &str,
) -> (String, Vec<EventKind>, Option<Usage>) {
    let mut reader = dialect.stream(view, ALL);
    let (mut shown, mut marks) = (String::new(), Vec::new());
    for event in reader.push(stream.as_bytes()).unwrap() {
        marks.push(event.kind);
        shown += &match event.output {
            EventOutput::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
            EventOutput::Deltas(deltas) => deltas.iter().map(|it| format!("{it:?}\n")).collect(),
        };
    }
    (shown, marks, reader.usage())
}

const CHAT: &str = concat!(
    ": alive\n\n",
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"prompt_token_ids\":[1]}\n\n",
    "event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"logprobs\":{\"content\":[]},\"token_ids\":[2]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n",
    "data: [DONE]\n\n",
);

#[test]
fn added_fields_are_stripped_from_a_chat_stream() {
    let (shown, marks, usage) = read(EndpointDialect::Chat, StreamView::Original, CHAT);
    let expect = concat!(
        ": alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"logprobs\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    assert_eq!(shown, expect);
    let expect = [
        EventKind::Nothing,
        EventKind::Nothing,
        EventKind::Content,
        EventKind::Final,
        EventKind::Nothing,
        EventKind::Done,
    ];
    assert_eq!(marks, expect);
    assert_eq!(usage.unwrap().completion_tokens, 2);
}

#[test]
fn deltas_of_a_chat_stream_carry_the_same_answer() {
    let (shown, marks, usage) = read(EndpointDialect::Chat, StreamView::Deltas, CHAT);
    assert!(
        shown.starts_with("Text(\"ok\")\nFinish(\"stop\")\nUsage("),
        "{shown}"
    );
    let (_, own_marks, own_usage) = read(EndpointDialect::Chat, StreamView::Original, CHAT);
    assert_eq!((marks, usage), (own_marks, own_usage));
}

const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n",
    "data: {\"type\": \"ping\"}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"ok\"}}\n\n",
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n",
    "data: {\"type\":\"message_stop\"}\n\n",
);

#[test]
fn an_anthropic_stream_is_forwarded_unchanged() {
    let (shown, marks, usage) = read(EndpointDialect::Anthropic, StreamView::Original, ANTHROPIC);
    assert_eq!(shown, ANTHROPIC);
    let expect = [
        EventKind::Content,
        EventKind::Nothing,
        EventKind::Content,
        EventKind::Content,
        EventKind::Final,
        EventKind::Done,
    ];
    assert_eq!(marks, expect);
    let usage = usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
    let deltas = read(EndpointDialect::Anthropic, StreamView::Deltas, ANTHROPIC);
    assert!(
        deltas
            .0
            .starts_with("Text(\"ok\")\nFinish(\"stop\")\nUsage("),
        "{}",
        deltas.0
    );
    assert_eq!((deltas.1, deltas.2), (expect.to_vec(), Some(usage)));
}

#[test]
fn errors_are_forwarded_unchanged_in_either_dialect() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n";
    for dialect in [EndpointDialect::Chat, EndpointDialect::Anthropic] {
        let (shown, marks, _) = read(dialect, StreamView::Original, error);
        assert_eq!(shown, error);
        let [EventKind::Error(error)] = marks.as_slice() else {
            panic!("{marks:?}");
        };
        assert!(error.is_transient() && error.message == "busy");
    }
    let bare = "data: {\"type\":\"error\"}\n\n";
    let (_, marks, _) = read(EndpointDialect::Anthropic, StreamView::Original, bare);
    assert!(matches!(marks.as_slice(), [EventKind::Error(_)]));
}

#[test]
fn a_truncated_answer_is_detected_in_json_and_streams() {
    for (dialect, cut) in [
        (
            EndpointDialect::Chat,
            r#"{"choices":[{"finish_reason":"length"}]}"#,
        ),
        (
            EndpointDialect::Chat,
            "data: {\"choices\": [{\"finish_reason\": \"length\"}]}\n\ndata: [DONE]\n\n",
        ),
        (
            EndpointDialect::Anthropic,
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#,
        ),
    ] {
        assert!(dialect.is_truncated(cut.as_bytes()), "{cut}");
    }
    for whole in [
        r#"{"choices":[{"finish_reason":"stop"}],"x":"length"}"#,
        r#"{"choices":[{"message":{"content":"\"finish_reason\":\"length\""}}]}"#,
        "",
    ] {
        assert!(
            !EndpointDialect::Chat.is_truncated(whole.as_bytes()),
            "{whole}"
        );
    }
}

#[test]
fn only_headers_of_the_dialect_are_forwarded() {
    let headers: HeaderMap = [
        ("anthropic-beta", "a"),
        ("authorization", "Bearer k"),
        ("x-api-key", "k"),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
    .collect();
    let passed = EndpointDialect::Anthropic.forwarded_head(&headers, Some("beta=true"));
    assert_eq!(passed.headers.len(), 1);
    assert_eq!(passed.query.as_deref(), Some("beta=true"));
    let passed = EndpointDialect::Anthropic.forwarded_head(&headers, Some("key=k"));
    assert_eq!(passed.query, None);
    assert!(
        EndpointDialect::Chat
            .forwarded_head(&headers, None)
            .headers
            .is_empty()
    );
}
