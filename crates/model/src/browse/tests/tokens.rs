use super::*;
use crate::browse::tokens::{Alternative, Token};

#[test]
fn sampled_tokens_have_ids_texts_logprobs_masks_and_alternatives() {
    for is_stream in [false, true] {
        let mut calls = work();
        calls[0].is_stream = is_stream;
        calls[0].likely = vec![("token_id:9", -3.0), ("\u{fffd}", -0.25)];
        let reading = read(&calls);
        let page = reading.tokens(0, Part::Completion, 1, 9).unwrap();
        assert_eq!((page.start, page.total, page.is_exact), (1, 2, true));
        let likely = |id, text: &str, logprob| Alternative {
            id,
            text: text.to_owned(),
            logprob: Some(logprob),
        };
        let expected = Token {
            id: Some(5),
            text: Some("t5".to_owned()),
            logprob: Some(-0.05),
            mask: 1,
            sampled_in: None,
            alternatives: vec![
                likely(None, "\u{fffd}", -0.25),
                likely(Some(9), "token_id:9", -3.0),
            ],
        };
        assert_eq!(page.tokens, [expected]);
        assert!(
            reading
                .detail(0, MessageRange::New)
                .unwrap()
                .has_alternatives
        );
        assert_eq!(reading.tokens(3, Part::Completion, 0, 9), None);
    }
}

#[test]
fn tokens_of_a_prompt_tell_the_call_that_sampled_them() {
    let reading = read(&work());
    let page = reading.tokens(2, Part::Prompt, 0, 100).unwrap();
    let ids: Vec<u32> = page.tokens.iter().filter_map(|token| token.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let sampled: Vec<_> = page.tokens.iter().map(|token| token.sampled_in).collect();
    let (none, first, second) = (None, Some(0), Some(1));
    assert_eq!(
        sampled,
        [none, none, none, first, first, none, second, none, none]
    );
    assert_eq!(page.tokens[4].text.as_deref(), Some("t5"));
    assert!(page.tokens.iter().all(|token| token.mask == 0));
    let part = reading.tokens(2, Part::Prompt, 4, 2).unwrap();
    assert_eq!(part.tokens, page.tokens[4..6]);
}

#[test]
fn ids_and_texts_that_do_not_fit_are_not_paired() {
    let mut calls = work();
    calls[0].sampled = vec![4, 5];
    let reading = read(&calls);
    assert!(reading.tokens(0, Part::Completion, 0, 9).unwrap().is_exact);
    // The endpoint tells more logprobs than ids.
    let line = calls[0].response(1);
    let Line::Response(mut response) = line else {
        panic!("a response");
    };
    let mut body: Value = serde_json::from_slice(&response.body).unwrap();
    body["choices"][0]["token_ids"] = json!([4]);
    response.body = body.to_string().into();
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    for line in [calls[0].request(1), Line::Response(response)] {
        let frame = encoder.earlier(&line).frame(line).unwrap();
        bytes.extend(encoder.encode(frame).unwrap().0);
    }
    let reading = Reading::new(bytes.into(), &Facts::default(), false);
    let page = reading.tokens(0, Part::Completion, 0, 9).unwrap();
    assert_eq!((page.total, page.is_exact), (2, false));
    let told: Vec<_> = page.tokens.iter().map(|it| (it.id, it.mask)).collect();
    assert_eq!(told, [(None, 0), (None, 0)]);
    assert_eq!(page.tokens[0].text.as_deref(), Some("t4"));
}

#[test]
fn a_call_without_logprobs_has_ids_alone() {
    let mut calls = work();
    calls[2].has_logprobs = false;
    let page = read(&calls).tokens(2, Part::Completion, 0, 9).unwrap();
    let expected = Token {
        id: Some(10),
        text: None,
        logprob: None,
        mask: 0,
        sampled_in: None,
        alternatives: Vec::new(),
    };
    assert_eq!((page.tokens, page.is_exact), (vec![expected], false));
}
