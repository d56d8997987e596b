//! `rollcage proxy`: the capture proxy alone.

use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;

use anyhow::Context;

use rollcage_endpoints::choice::{EndpointChoice, EndpointRequest};
use rollcage_endpoints::serving::Servers;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{AllowRule, Guard};
use rollcage_proxy::probe::Profile;
use rollcage_proxy::secret::Secret;
use rollcage_proxy::{Handler, ServerHandle};

use super::listen::{WebArguments, refused};
use super::patience::PatienceArguments;
use super::signals::Signals;
use crate::progress::ServingProgress;
use crate::server::capture::{CaptureServer, ResolveError, resolve};
use crate::{Outcome, UsageError, output, settings};

/// Serve the capture proxy alone, for a harness of your own.
///
/// Open a session with POST /sessions and give its session_id to your agent as the API key, with this server as the
/// base URL. GET /sessions/ID/rollout then gives the stitched, masked tokens, and GET /sessions/ID/trace_entries one
/// entry per model call, as OpenEnv's capture server does.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The endpoint that sessions use unless they name their own: a URL, a name that `rollcage endpoint list` shows, or
    /// PROVIDER/MODEL
    #[arg(long, value_name = "URL|NAME")]
    upstream: String,

    /// Its model; at a URL the first it lists when not given
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// What it speaks; the default is what its kind speaks, and chat at a URL
    #[arg(long, value_enum, value_name = "DIALECT")]
    upstream_dialect: Option<super::dialect::DialectName>,

    /// The environment variable that holds its API key; by name the provider's own when not given
    #[arg(long, value_name = "VAR")]
    upstream_key_env: Option<String>,

    /// Where to listen; anything but loopback needs an admin key
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,

    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 8100)]
    port: u16,

    /// The environment variable that holds the key for the session routes, of at least 16 characters
    #[arg(long, value_name = "VAR")]
    admin_key_env: Option<String>,

    /// With an admin key: let sessions name this host, address or network as their `llm_url`: HOST, HOST:PORT,
    /// *.DOMAIN, ADDRESS or ADDRESS/BITS; may be given more than once. Public addresses are allowed as they are;
    /// `rollcage serve
    /// --help` has the rule
    #[arg(long, value_name = "WHAT")]
    allow_url: Vec<AllowRule>,

    #[command(flatten)]
    web_around: WebArguments,

    #[command(flatten)]
    patience: PatienceArguments,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let admin_key = arguments.admin_key_env.as_deref();
    let admin_key = admin_key.map(|name| settings::token(name, "--admin-key-env"));
    let admin_key = admin_key.transpose()?;
    if !arguments.host.is_loopback() && admin_key.is_none() {
        let text = format!(
            "{} can be reached from outside: set a key with --admin-key-env VAR",
            arguments.host
        );
        return Err(UsageError(text).into());
    }
    let mut signals = Signals::new().context("catch signals")?;
    // Model servers that we start ourselves; they end with us.
    let servers = Servers::new(&settings::home()?);
    let served = tokio::select! {
        served = serve(&arguments, admin_key, &servers) => served.map(Some),
        // Starting can take long, for example while a model is downloaded.
        () = signals.next() => Ok(None),
    };
    if let Ok(Some((mut serving, capture))) = served {
        signals.next().await;
        serving.close().await;
        capture.close().await;
        servers.close().await;
        return Ok(Outcome::Success);
    }
    servers.close().await;
    served.map(|_| Outcome::Success)
}

/// Listens, and prints the address.
async fn serve(
    arguments: &Arguments,
    admin_key: Option<Secret>,
    servers: &Servers,
) -> anyhow::Result<(ServerHandle, Arc<CaptureServer>)> {
    let (endpoint, profile) = find(arguments, servers).await?;
    let directory = settings::store()?.root().join("sessions");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .context("make the sessions directory")?;
    let listener = TcpListener::bind((arguments.host, arguments.port))
        .map_err(|error| refused(arguments.host, arguments.port, error))?;
    let address = listener.local_addr().context("find the port")?;
    let level = serde_json::to_string(&profile.level)?;
    output::announce(&format!(
        "Capture proxy at http://{address} for {} ({}), level {level} (Ctrl-C ends it)",
        endpoint.base_url, endpoint.model
    ));
    // Without a key only this machine can connect, and its users can reach the same addresses directly.
    let guard = admin_key
        .is_some()
        .then(|| Guard::new(arguments.allow_url.clone()));
    let web = &arguments.web_around;
    let mut capture = CaptureServer::new(endpoint, profile, admin_key, guard, directory)
        .with_web(web.allow_origin.clone(), web.trust_proxy.clone());
    capture.upstream_patience = arguments.patience.upstream();
    let capture = Arc::new(capture);
    let answering = Arc::clone(&capture);
    let handler: Handler = Arc::new(move |request| {
        let capture = Arc::clone(&answering);
        Box::pin(async move { capture.answer(request).await })
    });
    let serving = rollcage_proxy::serve(listener.into(), handler).context("serve")?;
    Ok((serving, capture))
}

/// The endpoint, whose server is started if it has one, and its profile.
async fn find(arguments: &Arguments, servers: &Servers) -> anyhow::Result<(Endpoint, Profile)> {
    let key = secret(arguments.upstream_key_env.as_deref(), "--upstream-key-env")?;
    let (upstream, model) = (arguments.upstream.clone(), arguments.model.clone());
    let dialect = arguments.upstream_dialect.map(Into::into);
    if upstream.contains("://") {
        let request = EndpointRequest {
            base_url: Some(upstream),
            key,
            model,
            dialect,
            ..EndpointRequest::default()
        };
        return resolve(request).await.map_err(|error| match error {
            ResolveError::Unusable(error) => super::endpoint::unusable(error),
            ResolveError::Forbidden(_) => error.into(),
        });
    }
    let request = EndpointRequest {
        kind: Some(upstream),
        key,
        model,
        dialect,
        ..EndpointRequest::default()
    };
    let endpoint = match super::endpoint::choose(request)? {
        EndpointChoice::Url(endpoint) => endpoint,
        EndpointChoice::Managed(managed) => {
            let progress = ServingProgress::new(false);
            let endpoint = servers
                .endpoint(&managed, &|step| progress.show(step))
                .await;
            progress.clear();
            endpoint?
        }
        EndpointChoice::Scripted => {
            let text = "the scripted endpoint needs a solution: serve one with `rollcage scripted`, and give its URL";
            return Err(UsageError(text.to_owned()).into());
        }
    };
    super::endpoint::settle_and_probe(endpoint).await
}

fn secret(variable: Option<&str>, flag: &str) -> anyhow::Result<Option<Secret>> {
    variable.map(|name| settings::key(name, flag)).transpose()
}
