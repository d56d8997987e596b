//! Rollouts of very many calls, and those whose prompt is rendered anew for every call: sizes grow with what is new, and
//! every token is there, compared one by one with what the endpoint sent.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rollcage_engine::store::Store;
use rollcage_model::call;
use rollcage_model::ending::Ended;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::finding::RolloutType;
use rollcage_model::record::RolloutResult;
use rollcage_model::sequence;
use rollcage_model::trace::Interpretation;
use rollcage_model::view::{TraceDetail, View};
use rollcage_testkit::upstream::{ReceivedRequest, Reply, Upstream};
use serde_json::{Value, json};

use crate::support::{Home, task};

/// A conversation with a tool in it. With a clock in its first message no prompt goes on from the one before.
const AGENT: &str = r#"
cat > agent.py <<'END'
import json, os, sys, urllib.request
calls, clock = int(sys.argv[1]), sys.argv[2] == "clock"
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
messages = [{"role": "system", "content": "rules " * 200}, {"role": "user", "content": "go"}]
for number in range(calls):
    if clock:
        messages[0] = {"role": "system", "content": "it is %d o'clock " % number + "rules " * 200}
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    head = {"content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]}
    request = urllib.request.Request("http://127.0.0.1:7000/v1/chat/completions", body, head)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append({"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]})
    answer = "line of output " * 20 + str(number)
    messages.append({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": answer})
END
python3 agent.py"#;

/// What the endpoint sent for one request.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    logprobs: Vec<f64>,
}

/// An endpoint whose tokens are words, each with a number of its own; what it sampled keeps its numbers.
#[derive(Default)]
struct Words {
    numbers: HashMap<String, u32>,
    sent: Vec<Sent>,
}

impl Words {
    fn ids(&mut self, text: &str) -> Vec<u32> {
        let mut number = |word: &str| {
            let next = self.numbers.len() as u32 + 100;
            *self.numbers.entry(word.to_owned()).or_insert(next)
        };
        text.split_inclusive(' ').map(&mut number).collect()
    }

    fn answer(&mut self, number: usize, asked: &ReceivedRequest) -> Reply {
        let body: Value = serde_json::from_str(&asked.body).unwrap();
        let mut prompt = Vec::new();
        for message in body["messages"].as_array().unwrap() {
            prompt.push(1);
            let call = &message["tool_calls"][0]["function"]["arguments"];
            prompt.extend(self.ids(message["content"].as_str().unwrap_or_default()));
            prompt.extend(self.ids(call.as_str().unwrap_or_default()));
            prompt.push(2);
        }
        prompt.push(1);
        let said = format!("now step {number} of all ");
        let arguments = json!({"command": format!("echo {number}")}).to_string();
        let mut sampled = self.ids(&said);
        sampled.extend(self.ids(&arguments));
        sampled.push(2);
        let logprobs: Vec<f64> = (0..sampled.len())
            .map(|at| -((number * 31 + at) as f64 + 1.0) / 1000.0)
            .collect();
        let entries: Vec<Value> = logprobs
            .iter()
            .map(|logprob| json!({"token": "t", "logprob": logprob, "bytes": [116], "top_logprobs": []}))
            .collect();
        let tool = json!([{"id": format!("call_{number}"), "type": "function", "function": {"name": "bash", "arguments": arguments}}]);
        let answer = json!({
            "id": "c", "object": "chat.completion", "model": "test-model", "prompt_token_ids": prompt,
            "choices": [{
                "index": 0, "finish_reason": "tool_calls", "token_ids": sampled, "logprobs": {"content": entries},
                "message": {"role": "assistant", "content": said, "tool_calls": tool},
            }],
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": sampled.len(), "total_tokens": prompt.len() + sampled.len()},
        });
        self.sent.push(Sent {
            prompt,
            sampled,
            logprobs,
        });
        Reply::Whole {
            status: 200,
            content_type: "application/json",
            body: answer.to_string(),
        }
    }
}

async fn run(home: &Home, n_calls: usize, clock: &str) -> (RolloutResult, Vec<Sent>) {
    let words = Arc::new(Mutex::new(Words::default()));
    let answering = Arc::clone(&words);
    let upstream =
        Upstream::start(move |number, asked| answering.lock().unwrap().answer(number, asked));
    let upstream = upstream.unwrap();
    let script = format!("{AGENT} {n_calls} {clock}");
    let result = home
        .run_against(task(&["true"]), &script, upstream.base_url())
        .await;
    assert_eq!(
        result.ended,
        Ended::Completed,
        "{:?} {}",
        result.error,
        result.agent_log_tail
    );
    let sent = words.lock().unwrap().sent.clone();
    (result, sent)
}

/// Every token of every call, in rows and in calls, against what was sent.
fn check_tokens(seen: &Interpretation, sent: &[Sent]) {
    assert_eq!(seen.rollout_type, RolloutType::Train, "{:?}", seen.findings);
    let rows = sequence::rows(seen);
    let mut found = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let whole = sequence::whole(&rows, number).unwrap();
        for turn in &row.turns {
            let end = turn.start + turn.len;
            assert!(
                whole.loss_mask[turn.start..end]
                    .iter()
                    .all(|mask| *mask == 1)
            );
            found.push(Sent {
                prompt: whole.ids[..turn.start].to_vec(),
                sampled: whole.ids[turn.start..end].to_vec(),
                logprobs: whole.logprobs[turn.start..end].to_vec(),
            });
        }
    }
    assert_eq!(found, sent);
    let trained: usize = rows.iter().map(|row| row.n_trainable).sum();
    let sampled: usize = sent.iter().map(|sent| sent.sampled.len()).sum();
    assert_eq!(trained, sampled, "each sampled token is trained once");
    let calls: Vec<_> = call::calls(seen).collect();
    let found: Vec<Sent> = calls
        .iter()
        .map(|call| Sent {
            prompt: call::whole_prompt(&calls, call.turn).unwrap(),
            sampled: call.completion_token_ids.clone().unwrap(),
            logprobs: call.logprobs.clone().unwrap(),
        })
        .collect();
    assert_eq!(found, sent);
}

/// Bytes by what they are of, those that must grow with what is new.
fn sizes(result: &RolloutResult, seen: &Interpretation) -> Vec<(String, usize)> {
    let record = Path::new(&result.record);
    let file = |name: &str| std::fs::metadata(record.join(name)).unwrap().len() as usize;
    let view = |wanted| {
        serde_json::to_vec(&View::new(result, seen, wanted))
            .unwrap()
            .len()
    };
    let mut sizes = vec![
        ("exchanges.rec".to_owned(), file("exchanges.rec")),
        ("result.json".to_owned(), file("result.json")),
        ("trace=sequences".to_owned(), view(TraceDetail::Sequences)),
        ("trace=turns".to_owned(), view(TraceDetail::Turns)),
    ];
    for format in [Format::Sequences, Format::Turns, Format::Sft] {
        let mut out = Vec::new();
        write(
            format,
            seen,
            &Meta::from(result),
            Options::default(),
            &mut out,
        )
        .unwrap();
        sizes.push((format!("export {format}"), out.len()));
    }
    sizes
}

/// The lines of Python that `docs/results.md` gives to trainers, run on exports of this rollout.
fn check_python(home: &Home, result: &RolloutResult, seen: &Interpretation) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (_, code) = docs.split_once("<!-- expand -->\n```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let scratch = home.directory.path();
    for format in [Format::Sequences, Format::Turns] {
        let file = std::fs::File::create(scratch.join(format.as_str())).unwrap();
        let mut file = std::io::BufWriter::new(file);
        write(
            format,
            seen,
            &Meta::from(result),
            Options::default(),
            &mut file,
        )
        .unwrap();
    }
    let print = r#"
for row in rows(open("sequences")):
    print(json.dumps([row["input_ids"], row["loss_mask"], row["logprobs"], row["rollout_id"]]))
for call in calls(open("turns")):
    print(json.dumps([call["prompt_token_ids"], len(call["messages"])]))
"#;
    let output = std::process::Command::new("python3")
        .args(["-c", &format!("{code}{print}")])
        .current_dir(scratch)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let rows = sequence::rows(seen);
    let whole = (0..rows.len()).map(|row| {
        let whole = sequence::whole(&rows, row).unwrap();
        json!([
            whole.ids,
            whole.loss_mask,
            whole.logprobs,
            result.rollout_id
        ])
    });
    let calls = seen.turns.iter().map(|turn| {
        let ids = turn.prompt_token_ids.as_ref().unwrap().to_vec();
        json!([ids, turn.messages.len()])
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected: Vec<Value> = whole.chain(calls).collect();
    assert_eq!(printed.len(), expected.len());
    for (printed, expected) in printed.iter().zip(&expected) {
        assert!(same(printed, expected), "{printed} {expected}");
    }
}

/// Python writes 0 where we write 0.0.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(left, right))
        }
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (left, right) => left == right,
    }
}

#[expect(clippy::print_stderr, reason = "the figures are worth a look")]
fn show(figures: &str) {
    eprintln!("{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_calls_grow_with_what_is_new_in_each() {
    let home = Home::new();
    for clock in ["still", "clock"] {
        let mut figures = Vec::new();
        for n_calls in [50, 100, 200] {
            let (result, sent) = run(&home, n_calls, clock).await;
            assert_eq!(sent.len(), n_calls);
            let store = Store::open(&home.path()).unwrap();
            let seen = store.interpret_result(&result).unwrap();
            check_tokens(&seen, &sent);
            assert_eq!(result.usage.trainable_turns, n_calls as u64);
            if n_calls == 50 {
                check_python(&home, &result, &seen);
            }
            figures.push(sizes(&result, &seen));
        }
        let mut shown = String::new();
        for (at, (what, large)) in figures[2].iter().enumerate() {
            let (small, middle) = (figures[0][at].1, figures[1][at].1);
            writeln!(shown, "{clock} {what}: {small} {middle} {large}").unwrap();
            // Twice the calls add twice as much, within what longer numbers take.
            let (first, second) = (middle.saturating_sub(small), large.saturating_sub(middle));
            assert!(second <= 2 * first + first / 4 + 2000, "{shown}");
        }
        show(&shown);
    }
}
