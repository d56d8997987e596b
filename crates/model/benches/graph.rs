//! How long it takes to link the turns of long rollouts, and what they hold in memory: `cargo bench -p rollcage-model`.
//!
//! Each turn adds 420 ids: 60 sampled, the rest from tools. `appending` prompts go on from the turn before;
//! `early id` ones differ in one of the first ids every turn; `last reply` ones have the last reply in other ids.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rollcage_model::exchange::{Exchange, Request, Response};
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::graph::Links;
use rollcage_model::tokens::TokenStore;
use rollcage_model::turn::Turn;

const NEW: usize = 420;
const SAMPLED: usize = 60;

#[derive(Clone, Copy)]
enum Shape {
    Appending,
    EarlyId,
    LastReply,
}

/// A rollout's ids, without the requests and answers around them.
struct Ids {
    shape: Shape,
    history: Vec<u32>,
    turn: u32,
}

impl Ids {
    fn next(&mut self) -> (Vec<u32>, Vec<u32>) {
        let turn = self.turn;
        self.turn += 1;
        let id = |salt: u32, at: usize| {
            let at = at as u32;
            (turn.wrapping_mul(0x9E37_79B1) ^ at.wrapping_mul(0x85EB_CA77) ^ salt) % 150_000
        };
        let told = (0..NEW - SAMPLED).map(|at| id(1, at));
        self.history.extend(told);
        // Room behind it, as a list that was read id by id has.
        let mut prompt = Vec::with_capacity(self.history.len() + NEW);
        prompt.extend_from_slice(&self.history);
        if let Shape::EarlyId = self.shape {
            prompt[20] = 200_000 + turn;
        }
        let sampled: Vec<u32> = (0..SAMPLED).map(|at| id(2, at)).collect();
        self.history.extend(&sampled);
        if let Shape::LastReply = self.shape {
            let middle = self.history.len() - SAMPLED / 2;
            self.history.splice(middle..middle + 1, [200_000, 200_001]);
        }
        (prompt, sampled)
    }
}

fn turn(number: u64, ids: Vec<u32>, sampled: Vec<u32>, store: &mut TokenStore) -> Turn {
    let exchange = Exchange {
        request: Request {
            exchange: number,
            ..Request::default()
        },
        response: None,
        sent: None,
    };
    let mut turn = Turn::new(&exchange);
    turn.upstream_error = None;
    turn.prompt_token_ids = Some(store.keep(ids, &sampled));
    turn.completion_token_ids = Some(sampled);
    turn
}

/// Prints one line; the time of making the ids is not in it.
#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn measure(name: &str, shape: Shape, n_turns: u32) {
    let mut ids = Ids {
        shape,
        history: (0..300).collect(),
        turn: 0,
    };
    let (mut store, mut links) = (TokenStore::default(), Links::default());
    let mut turns = Vec::new();
    let (mut took, mut read) = (Duration::ZERO, 0);
    for number in 1..=u64::from(n_turns) {
        let (prompt, sampled) = ids.next();
        read += prompt.len() + sampled.len();
        let start = Instant::now();
        let turn = turn(number, prompt, sampled, &mut store);
        links.push(&turn);
        took += start.elapsed();
        turns.push(turn);
    }
    let start = Instant::now();
    let graph = links.graph(&turns);
    let assembled = start.elapsed();
    let start = Instant::now();
    let mut sum = 0_u64;
    for prompt in turns
        .iter()
        .filter_map(|turn| turn.prompt_token_ids.as_ref())
    {
        sum += prompt
            .runs()
            .flatten()
            .map(|id| u64::from(*id))
            .sum::<u64>();
    }
    black_box(sum);
    let reading = start.elapsed();
    let total = took + assembled;
    let new = n_turns as usize * NEW;
    println!(
        "{name:10}  {n_turns:5} turns to {:7} ids  {:8.1} ms  {:6.1} ns a new id  {:5.2} ns an id read  held {:7.2} MiB ({:5.1} bytes a new id)  whole {:7.1} MiB  read again {:6.1} ms  {} roots",
        turns
            .last()
            .and_then(|turn| turn.prompt_token_ids.as_ref())
            .map_or(0, |ids| ids.len()),
        total.as_secs_f64() * 1e3,
        total.as_secs_f64() * 1e9 / new as f64,
        total.as_secs_f64() * 1e9 / read as f64,
        (store.bytes() + links.bytes()) as f64 / f64::from(1 << 20),
        (store.bytes() + links.bytes()) as f64 / new as f64,
        (read * 4) as f64 / f64::from(1 << 20),
        reading.as_secs_f64() * 1e3,
        graph
            .nodes
            .iter()
            .filter(|node| node.parent.is_none())
            .count(),
    );
}

/// How an agent sends replies back.
#[derive(Clone, Copy, Debug)]
enum Sent {
    AsTheyWere,
    Changed,
}

/// The whole way from stored bytes: reading, linking, and writing two exports.
#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn measure_exchanges(sent: Sent, n_turns: u32) {
    let mut ids = Ids {
        shape: Shape::EarlyId,
        history: (0..300).collect(),
        turn: 0,
    };
    let mut messages = vec![serde_json::json!({"role": "user", "content": "go"})];
    let mut exchanges = Vec::new();
    for number in 1..=u64::from(n_turns) {
        let (prompt, sampled) = ids.next();
        let logprobs: Vec<_> = sampled
            .iter()
            .map(|_| serde_json::json!({"token": "x", "logprob": -0.25}))
            .collect();
        let text = format!("reply {number} {}", "word ".repeat(SAMPLED));
        let reply = |text: &str| serde_json::json!({"role": "assistant", "content": text});
        let request = serde_json::json!({"messages": messages, "tools": [{"type": "function"}]});
        let response = serde_json::json!({
            "choices": [{"finish_reason": "stop", "message": reply(&text), "token_ids": sampled, "logprobs": {"content": logprobs}}],
            "prompt_token_ids": prompt,
        });
        messages.push(match sent {
            Sent::AsTheyWere => reply(&text),
            Sent::Changed => reply(text.trim()),
        });
        let told = format!("told {number} {}", "text ".repeat(NEW - SAMPLED));
        messages.push(serde_json::json!({"role": "user", "content": told}));
        exchanges.push(Exchange {
            request: Request {
                exchange: number,
                body: request.to_string().into(),
                ..Request::default()
            },
            response: Some(Response {
                exchange: number,
                status: Some(200),
                body: response.to_string().into(),
                ..Response::default()
            }),
            sent: None,
        });
    }
    let bytes: usize = exchanges
        .iter()
        .map(|exchange| {
            let answer = exchange.response.as_ref();
            exchange.request.body.len() + answer.map_or(0, |answer| answer.body.len())
        })
        .sum();
    let start = Instant::now();
    let seen = rollcage_model::trace::read(exchanges);
    let reading = start.elapsed();
    let mut times = Vec::new();
    for format in [Format::Capture, Format::TrainingTrace] {
        let start = Instant::now();
        let (meta, options) = (Meta::default(), Options::default());
        let written = write(format, &seen, &meta, options, &mut std::io::sink());
        times.push(format!(
            "{format} {:.0} ms",
            start.elapsed().as_secs_f64() * 1e3
        ));
        black_box(written.is_ok());
    }
    println!(
        "exchanges   {n_turns:5} turns sent back {sent:?}, {:7.1} MiB stored whole  read and linked {:7.1} ms  written: {}",
        bytes as f64 / f64::from(1 << 20),
        reading.as_secs_f64() * 1e3,
        times.join(", ")
    );
}

fn main() {
    // The first one pays for the memory that all others use again.
    measure("warm-up", Shape::EarlyId, 800);
    for (name, shape) in [
        ("appending", Shape::Appending),
        ("early id", Shape::EarlyId),
        ("last reply", Shape::LastReply),
    ] {
        for n_turns in [100, 200, 400, 800, 1600] {
            measure(name, shape, n_turns);
        }
    }
    for n_turns in [100, 200, 400] {
        for sent in [Sent::AsTheyWere, Sent::Changed] {
            measure_exchanges(sent, n_turns);
        }
    }
}
