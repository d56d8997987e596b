//! Property tests over randomly split streams.

use super::*;

/// Splits a text at `cuts`.
fn split_at_cuts(text: &str, cuts: &[usize]) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let (mut at, mut cuts) = (0, cuts.iter().cycle());
    while at < letters.len() {
        let end = (at + cuts.next().copied().unwrap_or(1).max(1)).min(letters.len());
        out.push(letters[at..end].iter().collect());
        at = end;
    }
    out
}

proptest! {
    #[test]
    fn any_split_of_an_answer_renders_the_same_answer(
        reasoning in ".{0,12}",
        text in ".{0,12}",
        arguments in prop::collection::vec(".{0,12}", 0..4),
        cuts in prop::collection::vec(1..5_usize, 1..5),
    ) {
        let calls: Vec<Value> = arguments.iter().enumerate()
            .map(|(at, text)| call(&format!("c{at}"), ["f", "patch"][at % 2], text))
            .collect();
        let whole_reply = reply(json!({"reasoning_content": reasoning, "content": text, "tool_calls": calls}), "stop");
        let mut answer = answer(json!({"input": "", "tools": [{"type": "custom", "name": "patch"}]}));
        let whole: Value = serde_json::from_slice(&answer.whole(&whole_reply)).unwrap();

        let mut deltas: Vec<Delta> = Vec::new();
        deltas.extend(split_at_cuts(&reasoning, &cuts).into_iter().map(Delta::Reasoning));
        deltas.extend(split_at_cuts(&text, &cuts).into_iter().map(Delta::Text));
        let mut waiting = Vec::new();
        for (index, text) in arguments.iter().enumerate() {
            deltas.push(Delta::Call { index, id: format!("c{index}"), name: ["f", "patch"][index % 2].to_owned() });
            waiting.push(split_at_cuts(text, &cuts).into_iter().map(move |text| Delta::Arguments { index, text }));
        }
        // The deltas of all calls interleave.
        for _ in 0..12 {
            deltas.extend(waiting.iter_mut().filter_map(Iterator::next));
        }
        deltas.extend([Delta::Finish("stop".to_owned()), Delta::Usage(whole_reply.usage.unwrap())]);
        let events = stream(&mut answer, &deltas);
        prop_assert_eq!(&events.last().unwrap()["response"], &whole);

        // The deltas add up to the items.
        let mut written: Vec<String> = vec![String::new(); whole["output"].as_array().unwrap().len()];
        for event in &events {
            if let Some(delta) = event["delta"].as_str() {
                written[usize::try_from(event["output_index"].as_u64().unwrap()).unwrap()].push_str(delta);
            }
        }
        for (item, written) in whole["output"].as_array().unwrap().iter().zip(written) {
            let paths = ["/summary/0/text", "/content/0/text", "/arguments", "/input"];
            let text = paths.iter().find_map(|path| item.pointer(path)?.as_str());
            prop_assert_eq!(text, Some(written.as_str()));
        }
        // Sent back, they become the same message.
        let back = chat_of(&json!({"input": whole["output"]}).to_string());
        let mut message = back["messages"][0].clone();
        prop_assert_eq!(message["content"].as_str().unwrap_or_default(), text);
        prop_assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), reasoning);
        let n_calls = message["tool_calls"].take().as_array().map_or(0, Vec::len);
        prop_assert_eq!(n_calls, arguments.len());
    }
}
