//! OpenCode: a single binary, driven with `opencode run`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bundle::{OPENCODE, Source};

use super::{Agent, BUNDLE_DIR, Launch, ModelAccess, WarmUp};

/// `opencode run` with everything off that looks outside or asks a person.
pub struct OpenCode;

const CONFIG_DIR: &str = "/home/user/.config/opencode";
const MODELS_FILE: &str = "/home/user/.config/opencode/rollcage-models.json";

impl Agent for OpenCode {
    fn name(&self) -> &'static str {
        "opencode"
    }

    fn source(&self) -> &'static Source {
        &OPENCODE
    }

    fn launch(&self, instruction: &str, access: &ModelAccess) -> Launch {
        let mut env = tuned_environment();
        env.insert(
            "OPENCODE_CONFIG_CONTENT".to_owned(),
            config(access).to_string(),
        );
        Launch {
            // An instruction with a space would reach the model in quotes as an argument; on stdin it arrives as it
            // is. A title of our own spares the side request for one.
            argv: vec![
                program(),
                "run".into(),
                "--format".into(),
                "json".into(),
                "--title".into(),
                "task".into(),
            ],
            env,
            stdin: instruction.to_owned(),
        }
    }

    fn home_files(&self) -> Vec<(&'static str, &'static str)> {
        // With these in place OpenCode believes its plugin package is installed and does not call npm in the
        // background. The empty catalogue of models saves two seconds of CPU and 200 MB.
        vec![
            (MODELS_FILE, "{}"),
            ("/home/user/.config/opencode/node_modules/.keep", ""),
            ("/home/user/.config/opencode/.gitignore", "node_modules\n"),
            (
                "/home/user/.config/opencode/package.json",
                r#"{"dependencies":{"@opencode-ai/plugin":"*"}}"#,
            ),
            (
                "/home/user/.config/opencode/package-lock.json",
                r#"{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}"#,
            ),
        ]
    }

    fn warm_up(&self) -> Option<WarmUp> {
        // Any command that opens the database migrates it, which costs every first start 0.2 to 3 seconds.
        let argv = vec![program(), "session".into(), "list".into()];
        Some(WarmUp {
            argv,
            env: tuned_environment(),
            keep: &[".local/share/opencode"],
        })
    }

    fn failure(&self, log_tail: &str) -> Option<String> {
        let error = log_tail.lines().rev().find_map(|line| {
            let event: Value = serde_json::from_str(line).ok()?;
            (event.get("type")? == "error")
                .then(|| event.get("error").cloned())
                .flatten()
        })?;
        let name = error.get("name").and_then(Value::as_str).unwrap_or("error");
        let message = error
            .pointer("/data/message")
            .and_then(Value::as_str)
            .unwrap_or_default();
        Some(if message.is_empty() {
            name.to_owned()
        } else {
            format!("{name}: {message}")
        })
    }
}

fn program() -> String {
    format!("{BUNDLE_DIR}/bin/opencode")
}

fn tuned_environment() -> BTreeMap<String, String> {
    const ON: &[&str] = &[
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_PURE",
        "OPENCODE_DISABLE_CLAUDE_CODE",
        "OPENCODE_DISABLE_EXTERNAL_SKILLS",
        "OPENCODE_DISABLE_PROJECT_CONFIG",
        // A context overflow would compact and repeat the same prompt without end.
        "OPENCODE_DISABLE_AUTOCOMPACT",
    ];
    let mut env: BTreeMap<_, _> = ON
        .iter()
        .map(|name| ((*name).to_owned(), "1".to_owned()))
        .collect();
    env.insert("OPENCODE_MODELS_PATH".to_owned(), MODELS_FILE.to_owned());
    env.insert("OPENCODE_CONFIG_DIR".to_owned(), CONFIG_DIR.to_owned());
    env
}

fn config(access: &ModelAccess) -> Value {
    let limit = json!({"context": access.context_tokens, "output": access.output_tokens});
    json!({
        "model": format!("rollcage/{}", access.model),
        "provider": {"rollcage": {
            // Bundled in the binary; any other package would be fetched from a registry at run time.
            "npm": "@ai-sdk/openai-compatible",
            "name": "rollcage",
            "options": {
                "baseURL": access.base_url,
                "apiKey": access.key,
                "headerTimeout": access.patience_ms,
                "chunkTimeout": access.patience_ms,
            },
            "models": {access.model.clone(): {"limit": limit}},
        }},
        "permission": "allow",
        "share": "disabled",
        "autoupdate": false,
        "snapshot": false,
        "lsp": false,
        "formatter": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_goes_to_standard_input_as_it_is() {
        let access = ModelAccess {
            base_url: "http://127.0.0.1:7000/v1".into(),
            key: "session-key".into(),
            model: "Qwen/Qwen3".into(),
            context_tokens: 131_072,
            output_tokens: 8192,
            patience_ms: 600_000,
        };
        let launch = OpenCode.launch("say \"hi\"\n", &access);
        assert_eq!(launch.stdin, "say \"hi\"\n");
        assert!(
            !launch
                .argv
                .iter()
                .any(|argument| argument.contains("session-key")),
            "keys stay out of argv"
        );
        let config: Value = serde_json::from_str(&launch.env["OPENCODE_CONFIG_CONTENT"]).unwrap();
        assert_eq!(config["model"], "rollcage/Qwen/Qwen3");
        assert_eq!(config["permission"], "allow");
        assert_eq!(
            config["provider"]["rollcage"]["options"]["baseURL"],
            "http://127.0.0.1:7000/v1"
        );
    }

    #[test]
    fn the_last_error_event_is_the_reason() {
        let log = concat!(
            "{\"type\":\"error\",\"error\":{\"name\":\"UnknownError\"}}\n",
            "{\"type\":\"error\",\"error\":{\"name\":\"APIError\",\"data\":{\"message\":\"no such model\"}}}\n",
            "not json\n{\"type\":\"text\"}\n",
        );
        assert_eq!(
            OpenCode.failure(log).as_deref(),
            Some("APIError: no such model")
        );
        assert_eq!(OpenCode.failure("{\"type\":\"text\"}"), None);
    }
}
