//! `rollcage endpoint list|probe`.

use std::io::Write;

use anyhow::Context;
use serde_json::{Value, json};

use rollcage_endpoints::check::EndpointError;
use rollcage_endpoints::choice::{EndpointChoice, EndpointRequest};
use rollcage_endpoints::provider::{Provider, Providers};
use rollcage_endpoints::serving::command::CommandServer;
use rollcage_endpoints::serving::{Servers, ServingStep};
use rollcage_model::finding::CaptureLevel;
use rollcage_model::task::TOP_LOGPROBS;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::probe::{LogprobsMode, Profile, probe};
use rollcage_proxy::{Unusable, settle_model};

use super::signals::StopSignal;
use crate::progress::{Screen, ServingProgress};
use crate::{Interrupted, Outcome, UsageError, output, settings, text};

/// List endpoints, and find out what one gives.
///
/// An endpoint is a model behind a URL. Those known by name are data: `providers.toml` in $ROLLCAGE_HOME changes and
/// adds providers, and `servers.toml` there names servers that are started when they are needed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Which endpoints are known by name, and what each still needs
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Ask an endpoint a few small questions: what can be captured, whether streams are whole, its model and context
    Probe(ProbeArguments),
}

#[derive(clap::Args)]
struct ProbeArguments {
    /// A URL, a name that `rollcage endpoint list` shows, or PROVIDER/MODEL
    #[arg(value_name = "URL|NAME", required_unless_present = "base_url")]
    name: Option<String>,

    /// Where it is, for one without a name or in place of its own URL
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,

    /// The environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,

    /// The model's name; without it the one that is served
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::List { json } => list(json),
        Command::Probe(arguments) => Box::pin(run_probe(arguments)).await,
    }
}

fn list(is_json: bool) -> anyhow::Result<Outcome> {
    let providers = settings::providers()?;
    let mut out = output::stdout();
    let rows = providers
        .iter()
        .map(|provider| Row::of(provider, &providers));
    let rows = rows.chain([Row::scripted()]);
    for row in rows.chain(providers.servers().map(|server| Row::of_server(server))) {
        if is_json {
            writeln!(out, "{}", row.json)?;
        } else {
            writeln!(out, "{:<12} {}", row.name, row.words)?;
        }
    }
    Ok(Outcome::Success)
}

/// One endpoint of the list. Keys are never shown, only whether they are set.
struct Row {
    name: String,
    words: String,
    json: Value,
}

impl Row {
    fn of(provider: &Provider, providers: &Providers) -> Self {
        let variable = settings::variables_of(providers);
        let of = |names: &[String]| names.iter().find_map(|name| variable(name));
        let model = of(&provider.model_variables).or_else(|| provider.model.clone());
        let request = EndpointRequest {
            kind: Some(provider.name.clone()),
            // Only the URL and the key matter here; a model can still be given on the command line.
            model: model.clone().or_else(|| Some("any".to_owned())),
            ..EndpointRequest::default()
        };
        let settled = request.resolve_among(providers, &variable);
        let (url, problem) = match settled {
            Ok(EndpointChoice::Url(endpoint)) => (Some(endpoint.base_url), None),
            Ok(EndpointChoice::Managed(managed)) => (Some(managed.url()), None),
            Ok(EndpointChoice::Scripted) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let key = match (of(&provider.key_variables), &provider.placeholder_key) {
            (Some(_), _) => "set",
            (None, Some(_)) => "not needed",
            (None, None) => "missing",
        };
        let words = match (&problem, &url) {
            (Some(problem), _) => format!("not configured: {problem}"),
            (None, url) => {
                let url = url.as_deref().unwrap_or_default();
                let model = model.as_deref().unwrap_or("(give --model)");
                format!("{url}, model {model}, key {key}")
            }
        };
        let json = json!({
            "endpoint": provider.name, "aliases": provider.aliases, "configured": problem.is_none(),
            "problem": problem, "base_url": url, "model": model, "key": key,
            "variables": {
                "base_url": provider.url_variables, "api_key": provider.key_variables,
                "model": provider.model_variables,
            },
            "dialect": provider.dialect, "auth": provider.auth, "has_token_ids": provider.has_token_ids,
            "is_thinking_disabled": provider.is_thinking_disabled, "serving": provider.serving,
            "contexts": provider.contexts,
        });
        Row {
            name: provider.name.clone(),
            words,
            json,
        }
    }

    fn of_server(server: &CommandServer) -> Self {
        let model = server.model.as_deref().unwrap_or("(what it serves)");
        let words = format!("started when needed, model {model}");
        let json = json!({
            "endpoint": server.name, "configured": true, "base_url": server.base_url, "model": server.model,
            "key": "not needed", "serving": "command",
        });
        Row {
            name: server.name.clone(),
            words,
            json,
        }
    }

    fn scripted() -> Self {
        let words = "plays a task's solution; the default when nothing is said".to_owned();
        let json = json!({
            "endpoint": "scripted", "configured": true, "model": rollcage_scripted::MODEL,
            "key": "not needed", "serving": "built in",
        });
        Row {
            name: "scripted".to_owned(),
            words,
            json,
        }
    }
}

async fn run_probe(arguments: ProbeArguments) -> anyhow::Result<Outcome> {
    let choice = arguments.choose()?;
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let servers = Servers::new(&settings::home()?);
    let progress = ServingProgress::new(arguments.json);
    let ask = probe_choice(&choice, &servers, &progress);
    let found = stop.token().run_until_cancelled(ask).await;
    progress.clear();
    servers.close().await;
    let (endpoint, profile) = found.ok_or(Interrupted)??;
    let mut out = output::stdout();
    if arguments.json {
        writeln!(out, "{}", as_json(&endpoint, &profile))?;
    } else {
        write!(out, "{}", describe(&endpoint, &profile))?;
    }
    Ok(Outcome::Success)
}

/// Starts the endpoint's server if it has one, and probes the endpoint.
async fn probe_choice(
    choice: &EndpointChoice,
    servers: &Servers,
    progress: &ServingProgress,
) -> anyhow::Result<(Endpoint, Profile)> {
    let endpoint = match choice {
        EndpointChoice::Scripted => {
            let text = "the scripted endpoint gives everything: there is nothing to find out";
            return Err(UsageError(text.to_owned()).into());
        }
        EndpointChoice::Url(endpoint) => endpoint.clone(),
        EndpointChoice::Managed(managed) => {
            let show = |step: &ServingStep| progress.show(step);
            servers.endpoint(managed, &show).await?
        }
    };
    progress.clear();
    settle_and_probe(endpoint).await
}

/// The endpoint with its model filled in, and its profile.
pub(crate) async fn settle_and_probe(
    mut endpoint: Endpoint,
) -> anyhow::Result<(Endpoint, Profile)> {
    let client = rollcage_proxy::outbound::client(&endpoint.base_url).context("set up HTTPS")?;
    let settled = settle_model(&client, &mut endpoint).await;
    settled.map_err(unusable)?;
    let profile = probe(&client, &endpoint, TOP_LOGPROBS).await;
    let profile = profile.map_err(unusable)?;
    Ok((endpoint, profile))
}

/// A refused key and an unknown model are the user's to change, so they are usage errors.
pub(crate) fn unusable(error: Unusable) -> anyhow::Error {
    match error {
        Unusable::Key(_) | Unusable::Model(_) => UsageError(error.to_string()).into(),
        Unusable::Failed(_) | Unusable::Other(_) => error.into(),
    }
}

impl ProbeArguments {
    fn choose(&self) -> anyhow::Result<EndpointChoice> {
        let key = match &self.api_key_env {
            None => None,
            Some(name) => Some(settings::key(name, "--api-key-env")?),
        };
        choose(EndpointRequest {
            kind: self.name.clone(),
            base_url: self.base_url.clone(),
            key,
            model: self.model.clone(),
            ..EndpointRequest::default()
        })
    }
}

/// Splits an endpoint that is given as a URL or as PROVIDER/MODEL into its parts.
pub(crate) fn split_endpoint(
    (kind, base_url, model): (
        &mut Option<String>,
        &mut Option<String>,
        &mut Option<String>,
    ),
    providers: &Providers,
) -> Result<(), UsageError> {
    if base_url.is_none() && kind.as_deref().is_some_and(is_url) {
        *base_url = kind.take();
    }
    if let (Some(name), None) = (&*kind, &*model) {
        let split = providers.split_model(name);
        if let Some((named, of_it)) = split.map_err(|error| UsageError(error.to_string()))? {
            (*kind, *model) = (Some(named), Some(of_it));
        }
    }
    Ok(())
}

/// Resolves a request to one endpoint.
pub(crate) fn choose(mut request: EndpointRequest) -> anyhow::Result<EndpointChoice> {
    let providers = settings::providers()?;
    let wrong = |error: EndpointError| UsageError(error.to_string());
    let said = (&mut request.kind, &mut request.base_url, &mut request.model);
    split_endpoint(said, &providers)?;
    let variable = settings::variables_of(&providers);
    let choice = request.resolve_among(&providers, variable);
    Ok(choice.map_err(wrong)?)
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn level_name(level: CaptureLevel) -> &'static str {
    match level {
        CaptureLevel::Tokens => "tokens",
        CaptureLevel::Logprobs => "logprobs",
        CaptureLevel::Text => "text",
    }
}

fn as_json(endpoint: &Endpoint, profile: &Profile) -> Value {
    json!({
        "endpoint": endpoint.kind, "base_url": endpoint.base_url, "model": endpoint.model,
        "served_model": profile.served_model, "capture_level": level_name(profile.level),
        "is_trainable": profile.level == CaptureLevel::Tokens,
        "streams": if profile.has_live_streams { "live" } else { "replayed" },
        "context_tokens": profile.context_tokens, "logprobs": profile.logprobs,
        "top_logprobs_max": profile.top_logprobs_max,
    })
}

fn describe(endpoint: &Endpoint, profile: &Profile) -> String {
    let served = match &profile.served_model {
        Some(served) if *served != endpoint.model => format!(" (served as {served})"),
        _ => String::new(),
    };
    let capture = match profile.level {
        CaptureLevel::Tokens => {
            "token ids of prompts and answers, with logprobs: rollouts can be trained on"
        }
        CaptureLevel::Logprobs => {
            "logprobs, but no token ids: rollouts can be evaluated, not trained on"
        }
        CaptureLevel::Text => "text alone: rollouts can be evaluated, not trained on",
    };
    let streams = match (profile.level, profile.has_live_streams) {
        (CaptureLevel::Tokens, true) => {
            "whole: every token id is in the stream, so it is passed on live"
        }
        (_, true) => "passed on live",
        (_, false) => "not whole: agents that stream get whole answers replayed",
    };
    let context = match profile.context_tokens {
        Some(tokens) => format!("{} tokens", text::count(tokens)),
        None => "not told".to_owned(),
    };
    let logprobs = match profile.logprobs {
        LogprobsMode::Unknown => String::new(),
        known => format!("\nlogprobs  {} ({})", known.in_words(), known.as_str()),
    };
    let alternatives = match profile.top_logprobs_max {
        Some(max) => format!(
            "\ntokens    at most {max} alternatives each: {TOP_LOGPROBS} are refused, and rollouts ask for {max}"
        ),
        None => String::new(),
    };
    format!(
        "endpoint  {} at {}\nmodel     {}{served}\ncapture   {}: {capture}\nstreams   {streams}\ncontext   {context}{logprobs}{alternatives}\n",
        endpoint.kind,
        endpoint.base_url,
        endpoint.model,
        level_name(profile.level),
    )
}
