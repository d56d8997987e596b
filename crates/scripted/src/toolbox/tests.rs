//! Tools as real agents offer them, and the resulting calls.

use serde_json::json;

use super::super::request;
use super::*;

fn with_tools<T>(tools: Value, act: impl FnOnce(&[Tool<'_>], &ArgumentDefaults<'_>) -> T) -> T {
    let tools: Vec<_> = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| json!({"function": tool}))
        .collect();
    let body = json!({"messages": [], "tools": tools}).to_string();
    let request = request::parse(body.as_bytes()).unwrap();
    let defaults = ArgumentDefaults {
        purpose: "Because".into(),
        workdir: "/w",
    };
    act(&request.offered(), &defaults)
}

fn text_tool(name: &str, properties: &[&str]) -> Value {
    let types = properties
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": "string"})));
    let types: Map<String, Value> = types.collect();
    json!({"name": name, "parameters": {"type": "object", "properties": types, "required": properties}})
}

#[track_caller]
fn check_shell(tools: Value, expect: &str) {
    let call = with_tools(tools, |tools, defaults| shell(tools, "ls", defaults)).unwrap();
    assert_eq!(format!("{} {}", call.name, call.arguments), expect);
}

#[track_caller]
fn check_write(tools: Value, expect: &str) {
    let call = with_tools(tools, |tools, defaults| {
        write(tools, "a/b.txt", "hi", defaults)
    })
    .unwrap();
    assert_eq!(format!("{} {}", call.name, call.arguments), expect);
}

#[test]
fn the_shell_tool_of_each_agent_is_found() {
    let editor = || {
        json!({"name": "text_editor", "parameters": {"properties": {
            "command": {"type": "string", "enum": ["view", "create"]}}}})
    };
    let opencode = text_tool("bash", &["command", "description"]);
    check_shell(
        json!([text_tool("read", &["filePath"]), opencode]),
        r#"bash {"command":"ls","description":"Because"}"#,
    );
    check_shell(
        json!([
            text_tool("BashOutput", &["bash_id"]),
            text_tool("Bash", &["command"])
        ]),
        r#"Bash {"command":"ls"}"#,
    );
    check_shell(
        json!([text_tool("exec_command", &["cmd", "workdir"])]),
        r#"exec_command {"cmd":"ls","workdir":"/w"}"#,
    );
    check_shell(
        json!([editor(), text_tool("developer__shell", &["command"])]),
        r#"developer__shell {"command":"ls"}"#,
    );
    check_shell(
        json!([editor(), text_tool("do_it", &["command"])]),
        r#"do_it {"command":"ls"}"#,
    );
    let words =
        json!({"name": "shell", "parameters": {"properties": {"command": {"type": "array"}}}});
    check_shell(json!([words]), r#"shell {"command":["bash","-lc","ls"]}"#);
}

#[test]
fn required_arguments_of_every_type_are_filled() {
    let tool = json!({"name": "bash", "parameters": {
        "properties": {
            "why": {"type": "string"}, "command": {"type": "string"}, "optional": {"type": "string"},
            "is_background": {"type": "boolean"}, "timeout": {"type": "integer"},
            "level": {"type": "string", "enum": ["low", "high"]}, "count": {"type": "number", "minimum": 3},
            "note": {"type": ["string", "null"]}, "tags": {"type": "array"}, "more": {"type": "object"},
        },
        "required": ["why", "command", "is_background", "timeout", "level", "count", "note", "tags", "more"],
    }});
    check_shell(
        json!([tool]),
        concat!(
            r#"bash {"why":"Because","command":"ls","is_background":false,"timeout":120000,"#,
            r#""level":"low","count":3,"note":null,"tags":[],"more":{}}"#,
        ),
    );
}

#[test]
fn files_are_written_with_absolute_paths() {
    let bash = text_tool("bash", &["command"]);
    check_write(
        json!([bash, text_tool("write", &["content", "filePath"])]),
        r#"write {"content":"hi","filePath":"/w/a/b.txt"}"#,
    );
    check_write(
        json!([text_tool("write_file", &["file_path", "content"])]),
        r#"write_file {"file_path":"/w/a/b.txt","content":"hi"}"#,
    );
    check_write(
        json!([bash, text_tool("write", &["content"])]),
        r#"bash {"command":"mkdir -p '/w/a' && printf '%s' 'hi' > '/w/a/b.txt'"}"#,
    );
    assert_eq!(absolute("./a", "/w/"), "/w/a");
    assert_eq!(absolute("/a", "/w"), "/a");
}

#[test]
fn the_shell_writes_exactly_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it's/new file").display().to_string();
    for content in [
        "",
        "no newline",
        "one\n",
        "it's $HOME `x` \\ é\n\n",
        "ROLLCAGE_EOF\n\tx\nROLLCAGE_EOF_\n",
    ] {
        let command = write_command(&path, content);
        let status = std::process::Command::new("sh")
            .args(["-c", &command])
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn no_fitting_tool_means_no_call() {
    let tools = || json!([text_tool("read", &["path"])]);
    assert_eq!(
        with_tools(tools(), |tools, defaults| shell(tools, "ls", defaults)),
        None
    );
    assert_eq!(
        with_tools(tools(), |tools, defaults| write(tools, "a", "b", defaults)),
        None
    );
}
