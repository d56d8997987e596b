//! An agent that is a shell script, for behaviour that no real agent shows on demand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollcage_engine::ReadyAgent;
use rollcage_engine::agent::{Agent, Launch, ModelAccess, WarmUp};
use rollcage_engine::bundle::{Bundle, OPENCODE, Source};

/// Runs a script with bash. The script sees `$BASE_URL`, `$KEY` and `$MODEL`, the instruction on standard input, and
/// a function `ask BODY` that posts a chat completion and prints the answer with its headers.
pub struct ShellAgent {
    pub script: String,
}

const ASK: &str = r#"
ask() {
    exec 3<>/dev/tcp/127.0.0.1/7000
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' "$KEY" "$(printf %s "$1" | wc -c)" "$1" >&3
    cat <&3
    exec 3<&-
}
"#;

impl ShellAgent {
    /// Tests need an agent for as long as the program runs, so it is never freed.
    pub fn leak(script: &str) -> &'static dyn Agent {
        Box::leak(Box::new(ShellAgent {
            script: script.to_owned(),
        }))
    }
}

impl Agent for ShellAgent {
    fn name(&self) -> &'static str {
        "shell"
    }

    fn source(&self) -> &'static Source {
        &OPENCODE
    }

    fn launch(&self, instruction: &str, access: &ModelAccess) -> Launch {
        let env = BTreeMap::from([
            ("BASE_URL".to_owned(), access.base_url.clone()),
            ("KEY".to_owned(), access.key.clone()),
            ("MODEL".to_owned(), access.model.clone()),
        ]);
        let script = format!("{ASK}\n{}", self.script);
        Launch {
            argv: vec!["/bin/bash".into(), "-c".into(), script],
            env,
            stdin: instruction.to_owned(),
        }
    }

    fn home_files(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    fn warm_up(&self) -> Option<WarmUp> {
        None
    }

    fn failure(&self, _log_tail: &str) -> Option<String> {
        None
    }
}

/// A bundle with nothing in it, at a directory of the test's.
pub fn empty_bundle(path: PathBuf) -> ReadyAgent {
    let bundle = Bundle {
        agent: "shell".to_owned(),
        version: "0".to_owned(),
        package: String::new(),
        program: path.join("none"),
        path,
        bytes: 0,
        integrity: String::new(),
    };
    ReadyAgent {
        bundle,
        home_layer: None,
    }
}
