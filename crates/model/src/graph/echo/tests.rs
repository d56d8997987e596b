use super::*;

fn reply(content: &str, calls: &[(&str, &str)]) -> Message {
    let calls = calls.iter().map(|(name, arguments)| ToolCall {
        id: None,
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    });
    Message {
        role: "assistant".to_owned(),
        content: Some(content.to_owned()),
        tool_calls: calls.collect(),
        ..Message::default()
    }
}

fn sent(content: &str, calls: &[(&str, &str)]) -> Value {
    reply(content, calls).to_value()
}

#[track_caller]
fn check(given: &Message, sent: &[Value], expect: Fit) {
    let sent: Vec<&Value> = sent.iter().collect();
    assert_eq!(fit(given, &sent), expect);
}

#[test]
fn what_agents_change_still_fits() {
    let call = |arguments| reply("", &[("bash", arguments)]);
    let back = |arguments| [sent("", &[("bash", arguments)])];
    for (given, now) in [
        (r#"{"a": 5000.0}"#, r#"{"a":5000}"#),
        (r#"{"a": 7e3}"#, r#"{"a":7000}"#),
        (r#"{"a": "5"}"#, r#"{"a":5}"#),
        (r#"{"a": "true"}"#, r#"{"a":true}"#),
        (r#"{"a": "x  \n"}"#, r#"{"a":"x"}"#),
        (r#"{"a": [1.0, {"b": 2.0}]}"#, r#"{"a":[1,{"b":2}]}"#),
        (r#"{"a": 1}"#, r#"{"a":1,"all":false}"#),
        (r#"{"a": null}"#, "{}"),
        ("", "{}"),
        ("{\"a\": ", "{\"a\":"),
    ] {
        check(&call(given), &back(now), Fit::Words);
    }
    for (given, now) in [
        (r#"{"a": 5}"#, r#"{"a":6}"#),
        (r#"{"a": "cd /w && ls"}"#, r#"{"a":"ls"}"#),
        (r#"{"a": [1]}"#, r#"{"a":[1,2]}"#),
        (r#"{"a": 1}"#, r#"{"a":{}}"#),
        ("{\"a\": ", "{}"),
    ] {
        check(&call(given), &back(now), Fit::Shape);
    }
}

#[test]
fn texts_and_names_fit_by_what_they_say() {
    let text = |text| reply(text, &[]);
    check(&text("so \n it is\n"), &[sent("so it is", &[])], Fit::Words);
    check(&text("\n\n"), &[sent("", &[])], Fit::Words);
    check(&text("one"), &[sent("two", &[])], Fit::Place);
    check(&text("one"), &[sent("one", &[("bash", "{}")])], Fit::No);
    let calls = reply("", &[("a.b", "{}"), ("c", "{}")]);
    let one = sent("", &[("a_b", "{}")]);
    let two = sent("", &[("c", "{}")]);
    check(&calls, &[one.clone(), two], Fit::Words);
    check(&calls, &[one], Fit::Place);
    check(
        &calls,
        &[sent("", &[("invalid", "{}"), ("c", "{}")])],
        Fit::Place,
    );
}
