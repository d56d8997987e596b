use proptest::prelude::*;

use super::*;

fn request(exchange: u64, body: &str) -> Line {
    Line::Request(Request {
        exchange,
        body: body.to_owned().into(),
        ..Request::default()
    })
}

fn response(exchange: u64, body: &str) -> Line {
    Line::Response(Response {
        exchange,
        body: body.to_owned().into(),
        ..Response::default()
    })
}

fn encode(lines: &[Line]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let frames = lines.iter().cloned();
    frames
        .flat_map(|line| {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            encoder.encode(frame).unwrap().0
        })
        .collect()
}

/// Shows exchanges as their numbers, with `?` for a missing response.
#[track_caller]
fn check(bytes: &[u8], expect: &str, expect_problems: &[&str]) {
    let (exchanges, problems) = read(bytes);
    let shown: Vec<String> = exchanges
        .iter()
        .map(|exchange| {
            let mark = if exchange.response.is_some() { "" } else { "?" };
            format!("{}{mark}", exchange.request.exchange)
        })
        .collect();
    assert_eq!(shown.join(" "), expect);
    assert_eq!(problems, expect_problems);
}

#[test]
fn responses_find_their_requests() {
    let lines = [
        request(2, "b"),
        request(1, "a"),
        response(1, "A"),
        request(3, "c"),
        response(2, "B"),
    ];
    check(&encode(&lines), "1 2 3?", &[]);
    let (exchanges, _) = read(&encode(&lines));
    assert_eq!(exchanges[1].request.body, "b");
    assert_eq!(exchanges[1].response.as_ref().unwrap().body, "B");
}

#[test]
fn a_torn_last_frame_is_left_out_and_told() {
    let whole = encode(&[request(1, "hello"), response(1, "some words")]);
    let first = encode(&[request(1, "hello")]).len();
    for cut in first + 1..whole.len() {
        let told = format!("frame 2: torn after {} bytes, left out", cut - first);
        check(&whole[..cut], "1?", &[&told]);
    }
}

#[test]
fn a_later_version_is_refused() {
    let text = String::from_utf8(encode(&[request(1, "a")])).unwrap();
    check(
        text.replace("\"version\":2", "\"version\":3").as_bytes(),
        "",
        &["frame 1: version 3 is later than 2, the latest this program reads"],
    );
}

#[test]
fn what_does_not_fit_is_told() {
    let lines = [
        request(1, "a"),
        request(1, "b"),
        response(7, "c"),
        response(1, "d"),
        response(1, "e"),
    ];
    check(
        &encode(&lines),
        "1",
        &[
            "frame 2: a second request 1, left out",
            "frame 3: a response without a request 7, left out",
            "frame 5: a second response 1, left out",
        ],
    );
    let (_, problems) = read(b"garbage\n");
    assert!(
        problems[0].starts_with("frame 1: not an exchange ("),
        "{problems:?}"
    );
}

/// A conversation that grows by a message a turn, as an agent sends it, and ids as an engine returns them.
fn conversation(turns: u64) -> Vec<Line> {
    let tools = "t".repeat(20_000);
    let mut messages = "m".repeat(5000);
    let mut ids = String::from("1");
    let mut lines = Vec::new();
    for turn in 1..=turns {
        messages += &format!(",message {turn} {}", "x".repeat(300));
        ids += &format!(",{turn}").repeat(100);
        lines.push(request(
            turn,
            &format!("{{\"messages\":[{messages}],\"tools\":[{tools}]}}"),
        ));
        let body = format!(
            "{{\"id\":\"chat-{turn}\",\"choices\":[{turn}],\"prompt_token_ids\":[{ids}],\"x\":null}}"
        );
        lines.push(response(turn, &body));
    }
    lines
}

#[test]
fn the_file_grows_with_what_is_new() {
    let short = encode(&conversation(20)).len();
    let long = encode(&conversation(200)).len();
    assert!(
        long < 12 * short,
        "{short} bytes for 20 turns, {long} for 200"
    );
    let (exchanges, problems) = read(&encode(&conversation(200)));
    assert_eq!(problems, Vec::<String>::new());
    let again: Vec<Line> = exchanges
        .into_iter()
        .flat_map(|exchange| {
            [
                Line::Request(exchange.request),
                Line::Response(exchange.response.unwrap()),
            ]
        })
        .collect();
    assert!(again == conversation(200));
}

/// Written by each version of this format; they must load for ever, and hold the same.
const RECORDS: [&[u8]; 2] = [
    include_bytes!("../../tests/records/version-1.rec"),
    include_bytes!("../../tests/records/version-2.rec"),
];

#[test]
fn a_flipped_bit_is_told_and_never_read_as_something_else() {
    let whole = RECORDS[1];
    let (exchanges, problems) = read(whole);
    assert_eq!(problems, Vec::<String>::new());
    let index = Index::new(whole);
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (found, problems) = read(&bytes);
        assert_eq!(problems.len(), 1, "bit {bit}: {problems:?}");
        let placed = Index::new(&bytes);
        for exchange in found {
            let number = exchange.request.exchange;
            assert_eq!(placed.exchange(&bytes, number).as_ref(), Some(&exchange));
            let before = index.exchange(whole, number).unwrap();
            assert_eq!(exchange.request, before.request, "bit {bit}");
            let is_same = exchange.response.is_none() || exchange.response == before.response;
            assert!(is_same, "bit {bit}: {:?}", exchange.response);
        }
    }
    assert_eq!(exchanges.len(), 2);
}

#[test]
fn records_of_every_version_still_load() {
    let [first, second] = RECORDS.map(read);
    assert_eq!(first, second);
    let (exchanges, problems) = first;
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(exchanges.len(), 2);
    assert!(exchanges[1].request.text().contains("second"));
    assert!(
        exchanges[1]
            .response
            .as_ref()
            .unwrap()
            .text()
            .contains("prompt_token_ids")
    );
}

proptest! {
    #[test]
    fn every_body_comes_back_byte_for_byte(
        bodies in prop::collection::vec(
            prop::collection::vec(
                prop::sample::select(vec![
                    b"\"prompt_token_ids\":[".to_vec(), vec![b'a'; 70], vec![b'b'; 1030], b"12,34,".to_vec(), vec![0xff, b'\n'],
                ]),
                0..8,
            ),
            0..14,
        ),
    ) {
        let lines: Vec<Line> = bodies
            .iter()
            .enumerate()
            .map(|(at, parts)| {
                let mut line = request(at as u64, "");
                *line.body_mut() = parts.concat().into();
                line
            })
            .collect();
        let (exchanges, problems) = read(&encode(&lines));
        prop_assert_eq!(problems, Vec::<String>::new());
        let again: Vec<Line> = exchanges.into_iter().map(|exchange| Line::Request(exchange.request)).collect();
        prop_assert_eq!(again, lines);
    }
}
