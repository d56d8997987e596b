//! `rollcage serve`: an OpenEnv environment for trainers and MCP clients.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use tokio::net::TcpListener;

use rollcage_engine::intake::Catalogue;
use rollcage_engine::{EngineLimits, EngineOptions, WarmLimits};
use rollcage_model::network::{ClientRights, HostEntry};
use rollcage_model::text::chain;
use rollcage_proxy::outbound::{AllowRule, Guard};

use super::listen::{WebArguments, refused};
use super::patience::PatienceArguments;
use super::signals::Signals;
use crate::server::access::{AccessPolicy, AccessToken, HostName};
use crate::server::api::About;
use crate::server::listen::BODY_LIMIT;
use crate::server::openenv::{Limits, Mode};
use crate::server::prefix::PathPrefix;
use crate::server::ready::{self, Readiness};
use crate::server::rollouts::Backend;
use crate::server::tasks::Tasks;
use crate::server::tools::RolloutTools;
use crate::server::web::{FrameAncestor, PageOptions};
use crate::server::{self, ServerOptions, ShutdownHook, api};
use crate::{Outcome, UsageError, output, settings};

/// What stands for the path of our data where clients can read it.
const HOME: &str = "$ROLLCAGE_HOME";
/// How long an agent's server stands ready after the last rollout that wanted one of its kind.
const WARM_LINGER: Duration = Duration::from_secs(300);

/// Serve an OpenEnv environment for trainers and MCP clients
///
/// OpenEnv's own Python clients (0.10) connect as they are:
///
///   from openenv.core.mcp_client import MCPToolClient
///   with MCPToolClient(base_url="http://127.0.0.1:8000").sync() as env:
///       env.reset()
///       env.call_tool("run_rollout", endpoint="vllm", instruction="...", verify=["..."])
///
/// MCP clients connect to http://127.0.0.1:8000/mcp. The same is under /v1/rollouts over REST,
/// with events; /metrics is for Prometheus. People open the page at /web; /docs lists every route.
/// With --token-env the page asks for the token once, and keeps it in a cookie.
/// GET /ready says whether rollouts can run on this machine, and why not; it needs no token.
/// A session is cheap: open as many as there are rollouts at once.
/// Ctrl-C lets running calls and rollouts finish within --grace and records the rest;
/// a second one ends at once.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Where to listen; anything but loopback needs --token-env
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,

    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,

    /// A folder of task files for OpenEnv's Task API; its sub-folders are splits, files in itself are the split `train`
    #[arg(long, value_name = "DIR")]
    tasks: Option<PathBuf>,

    /// How many rollouts may run at once; the number of processors when not given
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,

    /// How many rollouts may wait for their turn; more are refused
    #[arg(long, default_value_t = 1000, value_name = "N")]
    queue: usize,

    /// How many live agents a caller may have running (docs/live.md); each holds a sandbox
    #[arg(long, default_value_t = EngineLimits::default().live_per_owner, value_name = "N")]
    live_per_token: usize,

    /// How many live agents may run at once, of all callers
    #[arg(long, default_value_t = EngineLimits::default().live_max, value_name = "N")]
    live_max: usize,

    /// The environment's name
    #[arg(long, default_value = "rollcage")]
    name: String,

    /// How many sessions there may be at once
    #[arg(long, default_value_t = 256, env = "MAX_CONCURRENT_ENVS", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_sessions: u32,

    /// Whether /reset, /step and /state are served over HTTP; WebSockets have them in both modes
    #[arg(
        long,
        value_enum,
        default_value_t,
        env = "OPENENV_MODE",
        value_name = "MODE"
    )]
    mode: Mode,

    /// An environment variable that holds a token of at least 16 characters; callers with different tokens do not see
    /// each other's sessions
    #[arg(long, value_name = "VAR")]
    token_env: Vec<String>,

    /// Serve whoever can reach the port without a token: for a container whose port is published to loopback
    #[arg(long, conflicts_with = "token_env")]
    without_token: bool,

    /// With --without-token: a name that the server is called by, such as cage.example.org; may be given more than once (in
    /// the variable: by commas)
    ///
    /// Addresses, names without a dot and those of local networks (.local, .internal) need not be given. Any other name could
    /// be that of a web page, which gave it this server's address to be able to use it.
    #[arg(
        long,
        env = "ROLLCAGE_HOST_NAMES",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    host_name: Vec<HostName>,

    /// Let clients name this host, address or network in `base_url` and in the `url` of an MCP server: HOST, HOST:PORT,
    /// *.DOMAIN, ADDRESS or ADDRESS/BITS; may be given more than once
    ///
    /// Without it clients of a server with tokens, or with --without-token, may name public addresses only: not
    /// loopback, private, shared, link-local, metadata and reserved ones, however they are spelled or resolved, and not
    /// this machine's own. What was checked is what is connected to, and redirects are not followed. The server's own
    /// endpoints and the tasks of --tasks are not concerned, nor is a server on loopback without tokens. Such URLs do
    /// not go through HTTP_PROXY or HTTPS_PROXY, which would resolve names themselves, except to hosts that are allowed
    /// by name.
    #[arg(long, value_name = "WHAT")]
    allow_url: Vec<AllowRule>,

    /// Let sandboxes reach this host in phases with a network, whoever's task it is: HOST, HOST:PORT, *.DOMAIN, ADDRESS,
    /// ADDRESS/BITS or a preset such as @pip; may be given more than once (ROLLCAGE_ALLOW_HOSTS has more, by commas)
    ///
    /// Only hosts that are listed here, exactly, may have private addresses; what clients list may not.
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<HostEntry>,

    /// Let clients' tasks reach listed hosts only: their `network` may not be `open`, and setup commands have no network
    /// but those hosts
    #[arg(long)]
    no_open_network: bool,

    /// Let a task of --tasks keep its network, with the private hosts that it lists, also when a client brings the model that
    /// drives its agent, or sends it messages
    ///
    /// Without it such a task is the client's, and reaches public hosts and those of --allow-host only, unless the client
    /// changes nothing of it and names an `endpoint` and `model` that this server has configured; its agent takes no messages
    /// then. What a client replaces of a task (its instruction, commands, files, agent) makes it the client's in any case.
    #[arg(long)]
    clients_drive_tasks: bool,

    /// Close a session that no socket holds and no call uses for so many seconds
    #[arg(long, default_value_t = 3600.0, value_name = "SECONDS", value_parser = seconds)]
    session_timeout: f64,

    /// How many seconds a step may take that names no limit of its own
    #[arg(long, default_value_t = 900.0, value_name = "SECONDS", value_parser = seconds)]
    step_timeout: f64,

    /// How many seconds the sandbox of an aborted rollout is kept, so that finalize_rollout can still verify and
    /// collect; 0 keeps none
    #[arg(long, default_value_t = rollcage_engine::KEEP_ABORTED.as_secs_f64(), value_name = "SECONDS", value_parser = seconds_or_none)]
    keep_aborted: f64,

    /// How many sandboxes may stand ready with an agent's server for the next served rollouts of the same kind; as many as
    /// --jobs when not given, 0 for none
    ///
    /// Each takes some 400 MB while it waits. They are kept for as many rollouts as came in the last minute, one for five
    /// minutes after the last, and none where memory is short; /metrics counts them.
    #[arg(long, value_name = "N")]
    warm_agents: Option<usize>,

    /// How many seconds running calls and rollouts may go on after the first Ctrl-C or SIGTERM
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    grace: f64,

    /// Whether to serve the page for people: /web, where / leads to, and /docs
    #[arg(
        long,
        env = "ENABLE_WEB_INTERFACE",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_parser = clap::builder::BoolishValueParser::new(),
        value_name = "BOOL"
    )]
    web: bool,

    /// The path below which a proxy shows the server, such as /tools/rollcage, if it does not remove it from requests
    #[arg(long, env = "ROLLCAGE_PATH_PREFIX", value_name = "PATH")]
    path_prefix: Option<PathPrefix>,

    /// Let pages of this site show the page in a frame, such as `https://example.org` or `https://*.example.org`; may be given
    /// more than once (in the variable: by commas). In a hosted Space, huggingface.co may already
    #[arg(
        long,
        env = "ROLLCAGE_FRAME_ANCESTORS",
        value_delimiter = ',',
        value_name = "URL"
    )]
    frame_ancestor: Vec<FrameAncestor>,

    #[command(flatten)]
    web_around: WebArguments,

    #[command(flatten)]
    patience: PatienceArguments,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=604_800.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be between 0.1 and 604800".to_owned())
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(0.0) => Ok(0.0),
        _ => seconds(text),
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let policy = policy(&arguments)?;
    check_name(&arguments.name)?;
    let tasks = arguments
        .tasks
        .as_deref()
        .map(Tasks::read)
        .transpose()?
        .unwrap_or_default();
    let tasks = Arc::new(tasks);
    let guard = guard(&arguments, &policy);
    let mut signals = Signals::new().context("catch signals")?;
    // Early: there is nothing to clean up yet if this fails.
    let listener = TcpListener::bind((arguments.host, arguments.port))
        .await
        .map_err(|error| refused(arguments.host, arguments.port, error))?;
    let backend = backend(&arguments, Arc::clone(&tasks), guard).await?;
    let mut address = listener.local_addr().context("find the port")?;
    if address.ip().is_unspecified() {
        // We listen on every address; loopback is the one that works for the reader of this line.
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    output::announce(&greeting(address, arguments.web));
    let readiness = readiness(&backend);
    let page = arguments.web.then(|| page(&arguments));
    let about = Arc::new(About {
        name: arguments.name.clone(),
        live: arguments.live_max > 0 && arguments.live_per_token > 0,
        readiness: Arc::clone(&readiness),
        backend: Arc::clone(&backend),
    });
    let options = ServerOptions {
        name: arguments.name,
        mode: arguments.mode,
        sessions_max: arguments.max_sessions as usize,
        limits: Limits {
            step: Duration::from_secs_f64(arguments.step_timeout),
            session_idle: Duration::from_secs_f64(arguments.session_timeout),
            ..Limits::default()
        },
        open_sessions: Arc::clone(&backend.open_sessions),
        tasks,
        policy,
        origins: arguments.web_around.allow_origin,
        proxies: arguments.web_around.trust_proxy,
        tools: Arc::new(RolloutTools::new(Arc::clone(&backend))),
        page,
        path_prefix: arguments.path_prefix,
        extra: api::routes(Arc::clone(&backend))
            .merge(api::about_routes(about))
            .merge(ready::routes(Arc::clone(&readiness))),
        document: api::document(),
        grace: Duration::from_secs_f64(arguments.grace),
        on_shutdown: on_shutdown(Arc::clone(&readiness), backend),
    };
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let second_signal = async {
        signals.next().await;
        output::say("Ending; running calls may finish. Again to end at once.");
        let _ = stop.send(());
        signals.again().await;
    };
    let serving = server::serve(listener, options, async {
        let _ = stopped.await;
    });
    let serving = async { tokio::join!(serving, warn_if_unready(&readiness)) };
    tokio::select! {
        _ = serving => Ok(Outcome::Success),
        () = second_signal => std::process::exit(130),
    }
}

/// The first line of output. Programs that start us find the address in it.
fn greeting(address: SocketAddr, has_page: bool) -> String {
    let page = match has_page {
        true => format!("The page: http://{address}/web/ (docs at /docs). "),
        false => String::new(),
    };
    format!(
        "Rollcage serves OpenEnv at http://{address} (Ctrl-C ends it). {page}\
         Connect: MCPToolClient(base_url=\"http://{address}\")"
    )
}

fn page(arguments: &Arguments) -> PageOptions {
    let mut frame_ancestors = arguments.frame_ancestor.clone();
    if settings::is_hosted_space() {
        frame_ancestors.push(FrameAncestor::of_spaces());
    }
    PageOptions { frame_ancestors }
}

/// Which addresses clients may use in URLs.
fn guard(arguments: &Arguments, policy: &AccessPolicy) -> Option<Arc<Guard>> {
    match policy {
        AccessPolicy::Tokens(_) | AccessPolicy::Anyone(_) => {
            Some(Guard::new(arguments.allow_url.clone()))
        }
        // Only this machine can connect, and its users can reach the same addresses directly.
        AccessPolicy::Loopback => None,
    }
}

/// Ends the rollouts and trials that outlive calls.
fn on_shutdown(readiness: Arc<Readiness>, backend: Arc<Backend>) -> ShutdownHook {
    Box::new(|grace| {
        Box::pin(async move {
            readiness.close().await;
            backend.engine.shut_down(grace).await;
        })
    })
}

/// Tests readiness by starting a sandbox, and by writing to the data directory. The reason of a failure is public, so the
/// path of our data is removed from it.
fn readiness(backend: &Arc<Backend>) -> Arc<Readiness> {
    let store = backend.engine.store().clone();
    let home = store.root().display().to_string();
    let public = move |error: &dyn std::error::Error| chain(error).replace(&home, HOME);
    let write = move || {
        let written = store.try_write();
        written.map_err(|error| format!("write to {HOME}: {error}"))
    };
    let backend = Arc::clone(backend);
    let trial = move || {
        let (backend, public) = (Arc::clone(&backend), public.clone());
        let trial: BoxFuture<'static, _> = Box::pin(async move {
            let tried = backend.engine.try_sandbox().await;
            tried.map_err(|error| public(&error))
        });
        trial
    };
    Readiness::new(Box::new(trial), Arc::new(write))
}

/// Prints a prominent warning at the start if no rollout can run: clients would only see their rollouts fail.
async fn warn_if_unready(readiness: &Readiness) {
    if let Err(reason) = readiness.try_now().await {
        output::say(&format!(
            "NOT READY: no rollout can run on this machine: {reason}\n\
             The server stays up and tells so at /ready, where it is tried again; `rollcage doctor` looks closer."
        ));
    }
}

async fn backend(
    arguments: &Arguments,
    tasks: Arc<Tasks>,
    guard: Option<Arc<Guard>>,
) -> anyhow::Result<Arc<Backend>> {
    let default = EngineLimits::default();
    let slots = arguments.jobs.map_or(default.slots, usize::from);
    let limits = EngineLimits {
        slots,
        queue_max: arguments.queue,
        // One owner may use all slots; waiting owners take turns.
        owner_slots: slots,
        keep_aborted: Duration::from_secs_f64(arguments.keep_aborted),
        warm: WarmLimits {
            count_max: arguments.warm_agents.unwrap_or(slots),
            linger: WARM_LINGER,
        },
        live_per_owner: arguments.live_per_token,
        live_max: arguments.live_max,
        ..default
    };
    // Those that are wrong now are an error now; later they are left out.
    let known = settings::catalogue()?;
    let mut catalogue = Catalogue {
        agents: rollcage_agents::all(),
        more_agents: Arc::new(settings::own_agents()?),
        guard,
        upstream_patience: arguments.patience.upstream(),
        ..known
    };
    let network = Arc::make_mut(&mut catalogue.network);
    network.listed.extend(arguments.allow_host.clone());
    network.client_rights = ClientRights {
        may_open: !arguments.no_open_network,
        may_drive: arguments.clients_drive_tasks,
    };
    let options = EngineOptions {
        catalogue: Arc::new(catalogue),
        limits,
        ..settings::engine_options().await?
    };
    let engine = Box::pin(settings::open_engine(options)).await?;
    Ok(Backend::new(engine, tasks, BODY_LIMIT))
}

fn policy(arguments: &Arguments) -> anyhow::Result<AccessPolicy> {
    let mut tokens = Vec::new();
    for name in &arguments.token_env {
        if name == rollcage_engine::LOCAL {
            let text = format!(
                "--token-env {name}: that is the name of this machine's own user; name the variable otherwise"
            );
            return Err(UsageError(text).into());
        }
        tokens.push(AccessToken {
            owner: name.clone(),
            value: settings::token(name, "--token-env")?,
        });
    }
    if !tokens.is_empty() {
        return Ok(AccessPolicy::Tokens(tokens));
    }
    if arguments.host.is_loopback() {
        return Ok(AccessPolicy::Loopback);
    }
    if arguments.without_token {
        let mut names = arguments.host_name.clone();
        names.extend(settings::space_host().and_then(|name| name.parse().ok()));
        return Ok(AccessPolicy::Anyone(names));
    }
    let text = format!(
        "{} can be reached from outside: name a variable that holds a token with --token-env VAR",
        arguments.host
    );
    Err(UsageError(text).into())
}

/// The name becomes part of the Task API's paths.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    if name.is_empty() || name.len() > 100 || !name.chars().all(is_plain) {
        let text = format!("--name `{name}`: use letters, digits, `_`, `-` and `.`");
        return Err(UsageError(text).into());
    }
    Ok(())
}
