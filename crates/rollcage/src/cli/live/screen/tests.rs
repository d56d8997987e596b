use serde_json::json;

use super::*;

fn shown(is_terminal: bool, kinds: Vec<ReplyKind>) -> String {
    let mut bytes = Vec::new();
    let mut screen = Screen::new(&mut bytes, is_terminal);
    for (index, kind) in kinds.into_iter().enumerate() {
        let reply = Reply {
            trace_id: "t".to_owned(),
            seq: index as u64 + 1,
            turn_id: "t".to_owned(),
            session_id: None,
            kind,
        };
        screen.show(&reply).unwrap();
    }
    drop(screen);
    String::from_utf8(bytes).unwrap()
}

fn delta(text: &str) -> ReplyKind {
    ReplyKind::Delta {
        text: text.to_owned(),
    }
}

fn reasoning(text: &str) -> ReplyKind {
    ReplyKind::Reasoning {
        text: text.to_owned(),
    }
}

fn tool(status: ToolStatus, output: Option<&str>) -> ReplyKind {
    ReplyKind::Tool {
        call_id: "c1".to_owned(),
        name: "bash".to_owned(),
        status,
        input: json!({"command": "ls\n-la", "description": "list"}),
        output: output.map(str::to_owned),
    }
}

fn end(text: &str) -> ReplyKind {
    ReplyKind::Final {
        text: text.to_owned(),
        usage: Default::default(),
        finish: None,
    }
}

#[test]
fn a_turn_reads_well_without_a_terminal() {
    let turn = vec![
        reasoning("hm"),
        delta("I loo"),
        delta("k."),
        tool(ToolStatus::Pending, None),
        tool(ToolStatus::Running, None),
        tool(ToolStatus::Completed, Some("a.txt\nb.txt")),
        delta("Two files."),
        end("Two files."),
    ];
    assert_eq!(
        shown(false, turn),
        "hm\nI look.\n✓ bash ls -la → a.txt\nTwo files.\n"
    );
}

#[test]
fn on_a_terminal_reasoning_is_dim_and_a_call_ends_on_its_line() {
    let turn = vec![
        reasoning("hm"),
        tool(ToolStatus::Running, None),
        tool(ToolStatus::Error, Some("no")),
        end("whole"),
    ];
    assert_eq!(
        shown(true, turn),
        "\u{1b}[2mhm\u{1b}[0m\n… bash ls -la\r\u{1b}[K✗ bash ls -la → no\nwhole\n"
    );
}

#[test]
fn an_agent_cannot_control_the_terminal() {
    let hostile = "a\u{1b}]0;x\u{7}b\u{9b}2J\r\u{202e}c\n";
    let turn = vec![
        delta(hostile),
        reasoning(hostile),
        tool(ToolStatus::Completed, Some(hostile)),
        ReplyKind::Permission {
            id: "p".to_owned(),
            permission: hostile.to_owned(),
            patterns: vec![hostile.to_owned()],
            deadline: 0.0,
        },
        ReplyKind::Question {
            id: "q".to_owned(),
            questions: json!([{"question": hostile, "options": [{"label": hostile}]}]),
            deadline: 0.0,
        },
        ReplyKind::Error {
            code: ErrorCode::Upstream,
            message: hostile.to_owned(),
            retryable: false,
        },
    ];
    let shown = shown(false, turn);
    assert!(
        shown.chars().all(|it| !it.is_control() || it == '\n'),
        "{shown:?}"
    );
    assert!(shown.contains("[upstream: a"), "{shown}");
}
