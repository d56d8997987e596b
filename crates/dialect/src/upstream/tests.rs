use super::*;

const ALL: Added = Added {
    logprobs: true,
    top_logprobs: true,
    token_ids: true,
    usage: true,
    reasoning: false,
};

/// What an agent sees of a stream, and what its events mean.
fn read(dialect: EndpointDialect, view: View, stream: &str) -> (String, Vec<Mark>, Option<Usage>) {
    let mut reader = dialect.stream(view, ALL);
    let (mut shown, mut marks) = (String::new(), Vec::new());
    for event in reader.push(stream.as_bytes()).unwrap() {
        marks.push(event.mark);
        shown += &match event.shown {
            Shown::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
            Shown::Pieces(pieces) => pieces.iter().map(|it| format!("{it:?}\n")).collect(),
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
fn a_chat_stream_is_shown_without_what_was_added() {
    let (shown, marks, usage) = read(EndpointDialect::Chat, View::Own, CHAT);
    let expect = concat!(
        ": alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"logprobs\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );
    assert_eq!(shown, expect);
    let expect = [
        Mark::Nothing,
        Mark::Nothing,
        Mark::Content,
        Mark::Final,
        Mark::Nothing,
        Mark::Done,
    ];
    assert_eq!(marks, expect);
    assert_eq!(usage.unwrap().completion_tokens, 2);
}

#[test]
fn the_pieces_of_a_chat_stream_mean_the_same() {
    let (shown, marks, usage) = read(EndpointDialect::Chat, View::Pieces, CHAT);
    assert!(
        shown.starts_with("Text(\"ok\")\nFinish(\"stop\")\nUsage("),
        "{shown}"
    );
    let (_, own_marks, own_usage) = read(EndpointDialect::Chat, View::Own, CHAT);
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
fn an_anthropic_stream_is_shown_as_it_is() {
    let (shown, marks, usage) = read(EndpointDialect::Anthropic, View::Own, ANTHROPIC);
    assert_eq!(shown, ANTHROPIC);
    let expect = [
        Mark::Content,
        Mark::Nothing,
        Mark::Content,
        Mark::Content,
        Mark::Final,
        Mark::Done,
    ];
    assert_eq!(marks, expect);
    let usage = usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
    let pieces = read(EndpointDialect::Anthropic, View::Pieces, ANTHROPIC);
    assert!(
        pieces
            .0
            .starts_with("Text(\"ok\")\nFinish(\"stop\")\nUsage("),
        "{}",
        pieces.0
    );
    assert_eq!((pieces.1, pieces.2), (expect.to_vec(), Some(usage)));
}

#[test]
fn errors_come_as_they_are_in_either_dialect() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n";
    for dialect in [EndpointDialect::Chat, EndpointDialect::Anthropic] {
        let (shown, marks, _) = read(dialect, View::Own, error);
        assert_eq!(shown, error);
        let [Mark::Error(error)] = marks.as_slice() else {
            panic!("{marks:?}");
        };
        assert!(error.is_passing() && error.message == "busy");
    }
    let bare = "data: {\"type\":\"error\"}\n\n";
    let (_, marks, _) = read(EndpointDialect::Anthropic, View::Own, bare);
    assert!(matches!(marks.as_slice(), [Mark::Error(_)]));
}

#[test]
fn a_cut_answer_is_found_in_any_form() {
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
        assert!(dialect.is_cut(cut.as_bytes()), "{cut}");
    }
    for whole in [
        r#"{"choices":[{"finish_reason":"stop"}],"x":"length"}"#,
        r#"{"choices":[{"message":{"content":"\"finish_reason\":\"length\""}}]}"#,
        "",
    ] {
        assert!(!EndpointDialect::Chat.is_cut(whole.as_bytes()), "{whole}");
    }
}

#[test]
fn only_its_own_headers_are_passed_to_an_endpoint() {
    let headers: HeaderMap = [
        ("anthropic-beta", "a"),
        ("authorization", "Bearer k"),
        ("x-api-key", "k"),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
    .collect();
    let passed = EndpointDialect::Anthropic.passed(&headers, Some("beta=true"));
    assert_eq!(passed.headers.len(), 1);
    assert_eq!(passed.query.as_deref(), Some("beta=true"));
    let passed = EndpointDialect::Anthropic.passed(&headers, Some("key=k"));
    assert_eq!(passed.query, None);
    assert!(
        EndpointDialect::Chat
            .passed(&headers, None)
            .headers
            .is_empty()
    );
}
