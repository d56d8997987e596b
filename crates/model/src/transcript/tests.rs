//! Against what the real agents printed, shortened where they repeat themselves.

use super::*;

fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/transcript/fixtures");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

fn calls(transcript: &Transcript) -> Vec<&str> {
    let calls = transcript.entries.iter().filter_map(|entry| match entry {
        TranscriptEntry::ToolCall { name, .. } => Some(name.as_str()),
        _ => None,
    });
    calls.collect()
}

/// What an agent's record of a good run says: its tools in order, its last words, what it counted.
#[track_caller]
fn check(format: TranscriptFormat, file: &str, tools: &[&str], last: &str, usage: (u64, u64)) {
    let transcript = Transcript::read(format, &fixture(file));
    assert_eq!(transcript.end, AgentEnd::Done);
    assert_eq!(calls(&transcript), tools);
    let report = transcript.report();
    assert_eq!(report.last_message.as_deref(), Some(last));
    assert_eq!(report.tool_calls, tools.len() as u64);
    let counted = report.usage.unwrap();
    assert_eq!((counted.input_tokens, counted.output_tokens), usage);
    let results = transcript.entries.iter().filter_map(|entry| match entry {
        TranscriptEntry::ToolResult { id, .. } => Some(id),
        _ => None,
    });
    let asked = transcript.entries.iter().filter_map(|entry| match entry {
        TranscriptEntry::ToolCall { id, .. } => Some(id),
        _ => None,
    });
    assert!(asked.eq(results), "every call has its result");
}

const LAST: &str = "median now handles even and empty lists and leaves its argument alone.";

#[test]
fn claude_code() {
    let tools = ["Bash", "Write", "Bash"];
    check(
        TranscriptFormat::Claude,
        "claude.jsonl",
        &tools,
        LAST,
        (42_393, 372),
    );
}

#[test]
fn qwen_code_and_a_refused_write() {
    let tools = [
        "run_shell_command",
        "write_file",
        "run_shell_command",
        "run_shell_command",
    ];
    check(
        TranscriptFormat::Claude,
        "qwen.jsonl",
        &tools,
        LAST,
        (213_065, 659),
    );
    let transcript = Transcript::read(TranscriptFormat::Claude, &fixture("qwen.jsonl"));
    assert_eq!(transcript.report().tool_errors, 1);
}

#[test]
fn codex_and_a_warning_that_is_no_failure() {
    check(
        TranscriptFormat::Codex,
        "codex.jsonl",
        &["exec_command"; 3],
        LAST,
        (84_258, 425),
    );
    let report = Transcript::read(TranscriptFormat::Codex, &fixture("codex.jsonl")).report();
    assert!(report.last_error.unwrap().starts_with("Model metadata for"));
}

#[test]
fn gemini_cli_tells_word_by_word() {
    let tools = ["run_shell_command", "write_file", "run_shell_command"];
    check(
        TranscriptFormat::Gemini,
        "gemini.jsonl",
        &tools,
        LAST,
        (109_547, 386),
    );
}

#[test]
fn goose_tells_word_by_word() {
    let tools = ["shell", "write", "shell"];
    check(
        TranscriptFormat::Goose,
        "goose.jsonl",
        &tools,
        LAST,
        (14_221, 368),
    );
}

#[test]
fn pi_tells_every_message_again_and_again() {
    let tools = ["bash", "write", "bash"];
    check(
        TranscriptFormat::Pi,
        "pi.jsonl",
        &tools,
        LAST,
        (13_379, 368),
    );
}

#[test]
fn mini_swe_agent() {
    check(
        TranscriptFormat::Mini,
        "mini.json",
        &["bash"; 4],
        LAST,
        (9179, 494),
    );
}

#[test]
fn opencode() {
    let last = "It printed what it should.";
    let transcript = Transcript::read(TranscriptFormat::Opencode, &fixture("opencode.jsonl"));
    let usage = transcript.usage.unwrap();
    let usage = (usage.input_tokens, usage.output_tokens);
    check(
        TranscriptFormat::Opencode,
        "opencode.jsonl",
        &["write", "bash", "bash"],
        last,
        usage,
    );
}

#[track_caller]
fn check_failed(format: TranscriptFormat, text: &str, why: &str) {
    let end = Transcript::read(format, text).end;
    assert_eq!(end, AgentEnd::Failed(why.to_owned()));
}

#[test]
fn failures_are_told_in_words_and_not_in_exit_codes() {
    let api = r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error: 429","terminal_reason":"api_error","api_error_status":429}"#;
    check_failed(TranscriptFormat::Claude, api, "api_error: API Error: 429");
    let turns = r#"{"type":"result","subtype":"error_max_turns","is_error":true,"terminal_reason":"max_turns","errors":["Reached maximum number of turns (2)"]}"#;
    check_failed(
        TranscriptFormat::Claude,
        turns,
        "max_turns: Reached maximum number of turns (2)",
    );
    let qwen = r#"{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"[API Error: 400]"}}"#;
    check_failed(
        TranscriptFormat::Claude,
        qwen,
        "error_during_execution: [API Error: 400]",
    );
    let codex = r#"{"type":"turn.failed","error":{"message":"exceeded retry limit"}}"#;
    check_failed(TranscriptFormat::Codex, codex, "exceeded retry limit");
    let gemini = r#"{"type":"result","status":"error","error":{"type":"Error","message":"quota"}}"#;
    check_failed(TranscriptFormat::Gemini, gemini, "quota");
    let opencode =
        r#"{"type":"error","error":{"name":"APIError","data":{"message":"no such model"}}}"#;
    check_failed(
        TranscriptFormat::Opencode,
        opencode,
        "APIError: no such model",
    );
    let pi = r#"{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"400"}}"#;
    check_failed(TranscriptFormat::Pi, pi, "400");
    let mini = r#"{"info":{"exit_status":"BadRequestError"},"messages":[]}"#;
    check_failed(TranscriptFormat::Mini, mini, "BadRequestError");
}

#[test]
fn an_error_that_was_got_over_is_no_failure() {
    let text = concat!(
        "{\"type\":\"error\",\"error\":{\"name\":\"APIError\"}}\n",
        "warning: not json\n",
        "{\"type\":\"step_finish\",\"part\":{\"reason\":\"stop\",\"tokens\":{\"input\":3,\"output\":1}}}\n",
    );
    let transcript = Transcript::read(TranscriptFormat::Opencode, text);
    assert_eq!(transcript.end, AgentEnd::Done);
    assert_eq!(transcript.report().last_error.as_deref(), Some("APIError"));
}

#[test]
fn an_agent_that_was_cut_off_says_nothing_of_its_end() {
    for format in [
        TranscriptFormat::Opencode,
        TranscriptFormat::Claude,
        TranscriptFormat::Codex,
        TranscriptFormat::Gemini,
        TranscriptFormat::Goose,
        TranscriptFormat::Pi,
        TranscriptFormat::Mini,
        TranscriptFormat::Text,
    ] {
        let cut = "{\"type\":\"step_start\"}\n{\"type\":\"assis";
        assert_eq!(
            Transcript::read(format, cut).end,
            AgentEnd::Unsaid,
            "{format:?}"
        );
    }
}

#[test]
fn long_texts_are_cut_and_say_so() {
    let mut transcript = Transcript::default();
    transcript.say(Speaker::Assistant, "äöüß");
    transcript.call("1", "write", serde_json::json!({"content": ["äöüß", 7]}));
    transcript.result("1", "ok".to_owned(), false);
    transcript.cut(2);
    let short = "äö… 2 more characters";
    let mut expected = Transcript::default();
    expected.say(Speaker::Assistant, short);
    expected.call("1", "write", serde_json::json!({"content": [short, 7]}));
    expected.result("1", "ok".to_owned(), false);
    assert_eq!(transcript, expected);
}
