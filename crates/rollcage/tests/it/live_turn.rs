//! Turns of the real `opencode serve`, driven over HTTP.

mod model;
pub(crate) mod server;

use std::time::Duration;

use nix::sys::signal::Signal;
use rollcage_live::client::{Client, Prompt};
use rollcage_live::{TurnControls, TurnRequest, drive_turn};
use rollcage_model::live::{
    Answer as Allow, ErrorCode, PermissionPolicy, Reply, ReplyKind, ToolStatus, TurnUsage,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use model::{Answer, Model, calls, says, thinks, with_full_context};
use server::{Relay, Server};

/// Long enough for a loaded machine; a turn that takes so long has failed.
const LONG: Duration = Duration::from_secs(120);
/// The model's context, in tokens.
const CONTEXT: u64 = 50_000;

fn request(text: &str) -> TurnRequest {
    TurnRequest {
        prompt: Prompt {
            text: text.to_owned(),
            ..Prompt::default()
        },
        directory: None,
        session: None,
        title: "test".to_owned(),
        trace_id: "trace".to_owned(),
        turn_id: "turn".to_owned(),
        limit: LONG,
        permissions: PermissionPolicy::Allow,
        answer_limit: LONG,
    }
}

/// A turn that others can look at and act on.
struct Turn {
    abort: CancellationToken,
    answers: mpsc::Sender<(String, Allow)>,
    replies: mpsc::UnboundedReceiver<Reply>,
    running: tokio::task::JoinHandle<Reply>,
    seen: Vec<Reply>,
}

impl Turn {
    #[expect(clippy::disallowed_methods, reason = "joined at the turn's end")]
    fn start(client: Client, request: TurnRequest) -> Self {
        let abort = CancellationToken::new();
        let (answers, receiver) = mpsc::channel(8);
        let controls = TurnControls {
            abort: abort.clone(),
            answers: receiver,
        };
        let (sender, replies) = mpsc::unbounded_channel();
        let running = tokio::task::spawn(async move {
            let mut sink = |reply| sender.send(reply).unwrap();
            drive_turn(&client, request, controls, &mut sink).await
        });
        Turn {
            abort,
            answers,
            replies,
            running,
            seen: Vec::new(),
        }
    }

    /// The next reply that fits.
    async fn until(&mut self, fits: impl Fn(&ReplyKind) -> bool) -> ReplyKind {
        loop {
            let reply = tokio::time::timeout(LONG, self.replies.recv()).await;
            let reply = reply.unwrap().expect("such a reply");
            self.seen.push(reply.clone());
            if fits(&reply.kind) {
                return reply.kind;
            }
        }
    }

    /// All replies, after checks that hold for every turn.
    async fn end(mut self) -> Vec<Reply> {
        while let Some(reply) = self.replies.recv().await {
            self.seen.push(reply);
        }
        let last = self.running.await.unwrap();
        assert_eq!(self.seen.last(), Some(&last));
        for (index, reply) in self.seen.iter().enumerate() {
            assert_eq!(reply.seq, index as u64 + 1);
            assert_eq!(
                (reply.trace_id.as_str(), reply.turn_id.as_str()),
                ("trace", "turn")
            );
            let is_last = index + 1 == self.seen.len();
            assert_eq!(reply.kind.is_terminal(), is_last, "{:?}", reply.kind);
        }
        self.seen
    }
}

async fn run(client: &Client, request: TurnRequest) -> Vec<Reply> {
    Turn::start(client.clone(), request).end().await
}

/// All that was streamed of the answer.
fn streamed(replies: &[Reply]) -> String {
    let text = replies.iter().map(|reply| match &reply.kind {
        ReplyKind::Delta { text } => text.as_str(),
        _ => "",
    });
    text.collect()
}

#[track_caller]
fn final_text(replies: &[Reply]) -> String {
    match &replies.last().unwrap().kind {
        ReplyKind::Final { text, .. } => text.clone(),
        end => panic!("{end:?} is not the end of a good turn"),
    }
}

#[track_caller]
fn error(replies: &[Reply]) -> (ErrorCode, String, bool) {
    match &replies.last().unwrap().kind {
        ReplyKind::Error {
            code,
            message,
            retryable,
        } => (*code, message.clone(), *retryable),
        end => panic!("{end:?} is no error"),
    }
}

/// Each change of a tool's status, with its output.
fn tools(replies: &[Reply]) -> Vec<(ToolStatus, String)> {
    let tools = replies.iter().filter_map(|reply| match &reply.kind {
        ReplyKind::Tool { status, output, .. } => {
            Some((*status, output.clone().unwrap_or_default()))
        }
        _ => None,
    });
    tools.collect()
}

/// Says what a prompt asks for, and calls the tool that it names.
fn answer(prompt: &str, last: &Value) -> Answer {
    let is_first = last["role"] == "user";
    match prompt.split_once(' ').unwrap_or((prompt, "")) {
        ("bash", command) if is_first => calls(
            "bash",
            &json!({"command": command, "description": "run it"}),
        ),
        ("big", _) if is_first => {
            let tool = calls("bash", &json!({"command": "true", "description": "d"}));
            with_full_context(tool)
        }
        ("question", _) if is_first => {
            let options =
                json!([{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]);
            let question = json!({"question": "Which?", "header": "Pick", "options": options});
            calls("question", &json!({ "questions": [question] }))
        }
        ("task", prompt) if is_first => calls(
            "task",
            &json!({"description": "sub", "prompt": prompt, "subagent_type": "general"}),
        ),
        ("status", status) => Answer::Status(status.parse().unwrap()),
        ("think", text) => thinks("Hm. ", text),
        ("gate", _) => says(&["one ", "two ", "|", "three ", "four"]),
        ("gates", _) => says(&["one ", "|", "two ", "|", "three ", "|", "four"]),
        _ => says(&["All ", "is ", "done."]),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_one_session_stream_their_text_and_tools() {
    let model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let client = server.client();
    let first = run(&client, request("think It works.")).await;
    assert_eq!(streamed(&first), "It works.");
    let reasoning = ReplyKind::Reasoning {
        text: "Hm. ".to_owned(),
    };
    assert!(first.iter().any(|reply| reply.kind == reasoning));
    let usage = TurnUsage {
        input: 10,
        output: 5,
        ..TurnUsage::default()
    };
    let end = ReplyKind::Final {
        text: "It works.".to_owned(),
        usage,
        finish: Some("stop".to_owned()),
    };
    assert_eq!(first.last().unwrap().kind, end);
    // The same words again are another turn.
    let session = first.last().unwrap().session_id.clone();
    let again = TurnRequest {
        session: session.clone(),
        ..request("think It works.")
    };
    let second = run(&client, again).await;
    assert_eq!(streamed(&second), "It works.");
    assert!(second.iter().all(|reply| reply.session_id == session));
    let tool = TurnRequest {
        session: session.clone(),
        ..request("bash echo $((6 * 7)); pwd")
    };
    let third = run(&client, tool).await;
    assert_eq!(streamed(&third), "Wait. All is done.");
    assert_eq!(final_text(&third), "All is done.");
    let output = format!("42\n{}\n", server.work_directory());
    let expected = [
        (ToolStatus::Pending, String::new()),
        (ToolStatus::Running, String::new()),
        (ToolStatus::Completed, output),
    ];
    assert_eq!(tools(&third), expected);
    let messages = client.messages(&session.unwrap()).await.unwrap();
    assert_eq!(messages.len(), 7);
    // OpenCode summarises the conversation on its own, and goes on: three model calls, one answer.
    let full = run(&client, request("big")).await;
    assert_eq!(streamed(&full), "Wait. All is done.");
    let ReplyKind::Final { text, usage, .. } = &full.last().unwrap().kind else {
        panic!("{full:?} did not end well");
    };
    assert_eq!((text.as_str(), usage.input), ("All is done.", CONTEXT + 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_told_in_safe_words() {
    let model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let client = server.client();
    let bad = error(&run(&client, request("status 400")).await);
    let message = "the model answered HTTP 400: no, says [address] to [key]";
    assert_eq!(bad, (ErrorCode::Upstream, message.to_owned(), false));
    // OpenCode tries these again for as long as it may.
    let limited = TurnRequest {
        limit: Duration::from_secs(6),
        ..request("status 500")
    };
    let (code, message, retryable) = error(&run(&client, limited).await);
    assert_eq!((code, retryable), (ErrorCode::Timeout, true));
    assert!(
        message.contains("the model failed again and again"),
        "{message}"
    );
    let mut unknown = request("hello");
    unknown.prompt.model = Some(("nobody".to_owned(), "nothing".to_owned()));
    let (code, message, _) = error(&run(&client, unknown).await);
    assert_eq!(code, ErrorCode::Upstream);
    assert!(message.contains("nobody/nothing"), "{message}");
    let lost = TurnRequest {
        session: Some("ses_nothing".to_owned()),
        ..request("hello")
    };
    let (code, message, retryable) = error(&run(&client, lost).await);
    assert_eq!((code, retryable), (ErrorCode::Upstream, false));
    assert!(message.contains("404"), "{message}");
    let nobody = Client::of_url("http://127.0.0.1:1", None).unwrap();
    let (code, _, _) = error(&run(&nobody, request("hello")).await);
    assert_eq!(code, ErrorCode::Crashed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_aborted_and_the_session_goes_on() {
    let mut model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let client = server.client();
    let mut turn = Turn::start(client.clone(), request("gate"));
    model.reached(1).await;
    let two = ReplyKind::Delta {
        text: "two ".to_owned(),
    };
    turn.until(|kind| *kind == two).await;
    turn.abort.cancel();
    let replies = turn.end().await;
    assert_eq!(streamed(&replies), "one two ");
    assert_eq!(error(&replies).0, ErrorCode::Aborted);
    let session = replies[0].session_id.clone();
    let limited = TurnRequest {
        session: session.clone(),
        limit: Duration::from_secs(2),
        ..request("gate")
    };
    let replies = run(&client, limited).await;
    assert_eq!(error(&replies).0, ErrorCode::Timeout);
    let next = TurnRequest {
        session,
        ..request("hello")
    };
    assert_eq!(final_text(&run(&client, next).await), "All is done.");
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_and_questions_are_answered_by_the_caller_or_refused() {
    let model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let client = server.client();
    let ask = |text: &str| TurnRequest {
        permissions: PermissionPolicy::Ask,
        ..request(text)
    };
    // By the caller, also for a subagent.
    for prompt in ["bash echo allowed", "task bash echo allowed"] {
        let mut turn = Turn::start(client.clone(), ask(prompt));
        let asked = turn
            .until(|kind| matches!(kind, ReplyKind::Permission { .. }))
            .await;
        let ReplyKind::Permission {
            id,
            permission,
            patterns,
            ..
        } = asked
        else {
            unreachable!()
        };
        assert_eq!(
            (permission.as_str(), patterns.concat().as_str()),
            ("bash", "echo allowed")
        );
        turn.answers.send((id, Allow::Once)).await.unwrap();
        let replies = turn.end().await;
        assert_eq!(final_text(&replies), "All is done.");
        assert_eq!(tools(&replies).last().unwrap().0, ToolStatus::Completed);
    }
    // A question.
    let mut turn = Turn::start(client.clone(), ask("question"));
    let asked = turn
        .until(|kind| matches!(kind, ReplyKind::Question { .. }))
        .await;
    let ReplyKind::Question { id, questions, .. } = asked else {
        unreachable!()
    };
    assert_eq!(questions[0]["question"], "Which?");
    let answers = vec![vec!["B".to_owned()]];
    turn.answers
        .send((id, Allow::Choose { answers }))
        .await
        .unwrap();
    let replies = turn.end().await;
    let (status, output) = tools(&replies).pop().unwrap();
    assert_eq!(status, ToolStatus::Completed);
    assert!(output.contains(r#""Which?"="B""#), "{output}");
    // By nobody, and by policy.
    let nobody = TurnRequest {
        answer_limit: Duration::from_millis(300),
        ..ask("bash echo refused")
    };
    let policy = TurnRequest {
        permissions: PermissionPolicy::Reject,
        ..request("bash echo refused")
    };
    let question = request("question");
    for request in [nobody, policy, question] {
        let replies = run(&client, request).await;
        let (status, output) = tools(&replies).pop().unwrap();
        assert_eq!(status, ToolStatus::Error, "{output}");
        final_text(&replies);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_event_stream_loses_and_repeats_nothing() {
    let mut model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let relay = Relay::start(server.port).await;
    let client = server.client_at(relay.port);
    let turn = Turn::start(client.clone(), request("gates"));
    for gate in 1..=3 {
        model.reached(gate).await;
        relay.cut("GET /event").await;
        model.open_gate();
    }
    let replies = turn.end().await;
    assert_eq!(streamed(&replies), "one two three four");
    assert_eq!(final_text(&replies), "one two three four");
    // The blocking call breaks too, and the agent goes on.
    let turn = Turn::start(client, request("gate"));
    model.reached(4).await;
    relay.cut("POST /session/").await;
    model.open_gate();
    let replies = turn.end().await;
    assert_eq!(streamed(&replies), "one two three four");
    assert_eq!(final_text(&replies), "one two three four");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_or_dies_ends_the_turn() {
    let mut model = Model::start(answer).await;
    let server = Server::start(&model.base_url).await;
    let turn = Turn::start(server.client(), request("gate"));
    model.reached(1).await;
    server.signal(Signal::SIGSTOP);
    turn.abort.cancel();
    let replies = turn.end().await;
    assert_eq!(error(&replies).0, ErrorCode::Aborted);
    server.signal(Signal::SIGCONT);
    let mut turn = Turn::start(server.client(), request("gate"));
    model.reached(2).await;
    turn.until(|kind| matches!(kind, ReplyKind::Delta { .. }))
        .await;
    server.signal(Signal::SIGKILL);
    let replies = turn.end().await;
    let (code, message, retryable) = error(&replies);
    assert_eq!((code, retryable), (ErrorCode::Crashed, true));
    assert_eq!(message, "the agent's server ended during the turn");
}
