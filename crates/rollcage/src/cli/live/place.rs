//! Where live agents are: those of this machine's home, each with its supervisor, or those of a server.

use anyhow::Context;
use serde_json::Value;

use rollcage_engine::live::{self, LiveState, LiveView};

use super::client::Api;
use super::directory::AgentDirectory;
use crate::{UsageError, settings, text};

#[derive(clap::Args)]
#[command(next_help_heading = "Server")]
pub(super) struct PlaceArguments {
    /// The agents of this `rollcage serve` instead of this machine's own
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// The environment variable that holds the server's token
    #[arg(long, value_name = "VAR", requires = "server")]
    token_env: Option<String>,
}

/// Who has live agents.
pub(super) enum Place {
    Home(std::path::PathBuf),
    Server(Api),
}

impl PlaceArguments {
    pub(super) fn open(&self) -> anyhow::Result<Place> {
        let Some(url) = &self.server else {
            return Ok(Place::Home(settings::home()?));
        };
        let token = self.token_env.as_deref();
        let token = token.map(|name| settings::key(name, "--token-env"));
        Ok(Place::Server(Api::at_server(url, token.transpose()?)?))
    }
}

impl Place {
    /// All agents, the newest first.
    pub(super) async fn views(&self) -> anyhow::Result<Vec<LiveView>> {
        let mut views = match self {
            Place::Home(home) => {
                let home = home.clone();
                let read = tokio::task::spawn_blocking(move || live::stored(&home));
                read.await.context("read the live agents")?
            }
            Place::Server(api) => {
                let answer = api.get("/v1/live").await?;
                serde_json::from_value(answer["agents"].clone()).context("read the list")?
            }
        };
        views.sort_by(|one, other| other.created_at.total_cmp(&one.created_at));
        Ok(views)
    }

    /// The agent with this id, this name, or the only one whose id begins so.
    pub(super) async fn find(&self, wanted: &str) -> anyhow::Result<LiveView> {
        choose(self.views().await?, wanted)
    }

    /// Whoever has the agent; an error that says what to do if nobody has.
    pub(super) async fn connect(&self, view: &LiveView) -> anyhow::Result<Api> {
        let home = match self {
            Place::Home(home) => home,
            Place::Server(api) => return Ok(api.clone()),
        };
        let agent = AgentDirectory::new(home, &view.id);
        if agent.is_served().await {
            return Api::at_socket(&agent);
        }
        let name = shown(view);
        let text = match view.state {
            LiveState::Stopped | LiveState::Failed => format!(
                "the live agent {name} is stopped: start it again with `rollcage live start --id {}`",
                view.id
            ),
            _ => format!(
                "the live agent {name} has no supervisor that answers: another process has it, such as a server (name it \
                 with --server URL), or it is just starting"
            ),
        };
        Err(UsageError(text).into())
    }
}

/// An agent's name for messages, or its id.
pub(super) fn shown(view: &LiveView) -> String {
    match view.name.is_empty() {
        true => view.id.clone(),
        false => text::line(&view.name, 60),
    }
}

fn choose(views: Vec<LiveView>, wanted: &str) -> anyhow::Result<LiveView> {
    let fits = |view: &&LiveView| view.id == wanted;
    let named = |view: &&LiveView| view.name == wanted;
    let begins = |view: &&LiveView| view.id.starts_with(wanted);
    let running = |view: &&LiveView| named(view) && view.state != LiveState::Stopped;
    let ways: [&dyn Fn(&&LiveView) -> bool; 4] = [&fits, &running, &named, &begins];
    for way in ways {
        let mut found = views.iter().filter(way);
        match (found.next(), found.next()) {
            (Some(view), None) if !wanted.is_empty() => return Ok(view.clone()),
            (Some(_), Some(_)) => {
                let text = format!("`{wanted}` is more than one live agent: say more of its id");
                return Err(UsageError(text).into());
            }
            _ => {}
        }
    }
    let text = format!("no live agent `{wanted}`: see `rollcage live list`");
    Err(UsageError(text).into())
}

/// One agent's path in the API.
pub(super) fn path_of(view: &LiveView, rest: &str) -> String {
    format!("/v1/live/{}{rest}", view.id)
}

/// The fresh view of an agent, of whoever has it.
pub(super) async fn fresh(api: &Api, view: &LiveView) -> anyhow::Result<LiveView> {
    let answer: Value = api.get(&path_of(view, "")).await?;
    serde_json::from_value(answer).context("read the agent")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(id: &str, name: &str, state: &str) -> LiveView {
        serde_json::from_value(json!({
            "id": id, "name": name, "agent": "opencode", "version": "1", "model": "m", "sandbox": "local",
            "state": state, "created_at": 1.0, "turns": 0, "open_turns": 0, "restarts": 0, "calls": 0,
            "prompt_tokens": 0, "completion_tokens": 0, "records": [],
        }))
        .unwrap()
    }

    #[test]
    fn an_agent_is_found_by_id_name_or_the_beginning_of_its_id() {
        let views = || {
            vec![
                view("aa11", "helper", "idle"),
                view("aa22", "helper", "stopped"),
                view("bb33", "", "idle"),
            ]
        };
        let found = |wanted: &str| choose(views(), wanted).map(|view| view.id).ok();
        assert_eq!(found("aa22").as_deref(), Some("aa22"));
        assert_eq!(found("b").as_deref(), Some("bb33"));
        // Of two with a name, the one that runs is meant.
        assert_eq!(found("helper").as_deref(), Some("aa11"));
        assert_eq!(found("aa"), None);
        assert_eq!(found("zz"), None);
        assert_eq!(found(""), None);
    }
}
