//! An agent that is a shell script, for behaviour that real agents do not show on demand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::{Bundle, Origin, Source};
use rollcage_agents::{
    Agent, Events, Launch, LaunchError, LaunchRequest, ServeLaunch, WarmUp, WireDialect,
};
use rollcage_model::transcript::TranscriptFormat;

/// Runs a script with bash. The script sees `$BASE_URL`, `$KEY` and `$MODEL`, the instruction on standard input, and
/// a function `ask BODY` that posts a chat completion and prints the answer with its headers.
pub struct ShellAgent {
    pub script: String,
    source: Source,
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
    pub fn shared(script: &str) -> Arc<dyn Agent> {
        Arc::new(ShellAgent {
            script: script.to_owned(),
            source: Source {
                agent: "shell".to_owned(),
                default_version: String::new(),
                origin: Origin::Nothing,
                list: None,
            },
        })
    }
}

impl Agent for ShellAgent {
    fn name(&self) -> &str {
        "shell"
    }

    fn title(&self) -> &str {
        "a shell script"
    }

    fn source(&self) -> &Source {
        &self.source
    }

    /// `None` for a script without model calls, so that its rollout is judged as one without a model.
    fn dialect(&self) -> Option<WireDialect> {
        let asks = ["ask ", "urlopen"]
            .iter()
            .any(|word| self.script.contains(word));
        asks.then_some(WireDialect::Chat)
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        let access = request.access;
        let mut env = BTreeMap::from([
            ("BASE_URL".to_owned(), access.base_url.clone()),
            ("KEY".to_owned(), access.key.clone()),
            ("MODEL".to_owned(), access.model.clone()),
        ]);
        env.extend(request.task.agent.env.clone());
        let script = format!("{ASK}\n{}", self.script);
        Ok(Launch {
            argv: vec!["/bin/bash".into(), "-c".into(), script],
            env,
            stdin: request.task.instruction.clone(),
            files: Vec::new(),
        })
    }

    /// With `{port}` in its script it is a server.
    fn can_serve(&self) -> bool {
        self.script.contains("{port}")
    }

    fn serve(&self, request: &LaunchRequest<'_>) -> Option<Result<ServeLaunch, LaunchError>> {
        let serve = |launch: Launch| ServeLaunch {
            argv: launch.argv,
            env: launch.env,
            files: launch.files,
            variant: None,
            model: None,
        };
        self.can_serve().then(|| self.launch(request).map(serve))
    }

    fn home_files(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn warm_up(&self, _bundle: &Bundle) -> Option<WarmUp> {
        None
    }

    fn events(&self) -> Events {
        Events {
            format: TranscriptFormat::Text,
            file: None,
        }
    }
}

/// An empty bundle in a directory of the test.
pub fn empty_bundle(path: PathBuf) -> ReadyAgent {
    let bundle = Bundle {
        agent: "shell".to_owned(),
        version: "0".to_owned(),
        package: String::new(),
        program: path.join("none"),
        path,
        bytes: 0,
        integrity: String::new(),
        components: BTreeMap::new(),
        interpreter: None,
    };
    ReadyAgent {
        bundle,
        node: None,
        home_layer: None,
    }
}
