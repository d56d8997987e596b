//! `rollcage proxy`: the capture proxy alone.

use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;

use anyhow::Context;

use rollcage_engine::proxy::{self, Handler};
use rollcage_engine::secret::Secret;

use crate::server::capture::{Capture, resolve};
use crate::{Outcome, WrongUse, settings};

/// Serve the capture proxy alone, for a harness of your own.
///
/// Open a session with POST /sessions and give its session_id to your agent as the API key, with this server as the
/// base URL. GET /sessions/ID/rollout then gives the stitched, masked tokens, and GET /sessions/ID/trace_entries one
/// entry per model call, as OpenEnv's capture server does.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The endpoint that sessions use unless they name their own
    #[arg(long, value_name = "URL")]
    upstream: String,

    /// Its model; the first it lists when not given
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// What it speaks
    #[arg(long, value_enum, default_value_t = super::dialect::DialectName::Chat, value_name = "DIALECT")]
    upstream_dialect: super::dialect::DialectName,

    /// The environment variable that holds its API key
    #[arg(long, value_name = "VAR")]
    upstream_key_env: Option<String>,

    /// Where to listen; anything but loopback needs an admin key
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,

    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 8100)]
    port: u16,

    /// The environment variable that holds the key for the session routes
    #[arg(long, value_name = "VAR")]
    admin_key_env: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let admin_key = secret(arguments.admin_key_env.as_deref(), "--admin-key-env")?;
    if !arguments.host.is_loopback() && admin_key.is_none() {
        let text = format!(
            "{} can be reached from outside: set a key with --admin-key-env VAR",
            arguments.host
        );
        return Err(WrongUse(text).into());
    }
    let key = secret(arguments.upstream_key_env.as_deref(), "--upstream-key-env")?;
    let (endpoint, profile) = resolve(
        arguments.upstream,
        arguments.model,
        key,
        arguments.upstream_dialect.into(),
    )
    .await
    .map_err(|error| anyhow::anyhow!(error))?;
    let directory = settings::store()?.root().join("sessions");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .context("make the sessions directory")?;
    let listener = TcpListener::bind((arguments.host, arguments.port)).with_context(|| {
        format!(
            "listen on {} port {} (another program may have it; --port 0 takes a free one)",
            arguments.host, arguments.port
        )
    })?;
    let address = listener.local_addr().context("find the port")?;
    let mut out = std::io::stdout().lock();
    let level = serde_json::to_string(&profile.level)?;
    writeln!(
        out,
        "Capture proxy at http://{address} for {} ({}), level {level} (Ctrl-C ends it)",
        endpoint.base_url, endpoint.model
    )?;
    out.flush()?;
    drop(out);
    let capture = Arc::new(Capture::new(endpoint, profile, admin_key, directory));
    let handler: Handler = Arc::new(move |request| {
        let capture = Arc::clone(&capture);
        Box::pin(async move { capture.answer(request).await })
    });
    let serving = proxy::serve(vec![listener], handler).context("serve")?;
    super::run::stop_signal()
        .await
        .context("wait for a signal")?;
    serving.close().await;
    Ok(Outcome::Fine)
}

fn secret(variable: Option<&str>, flag: &str) -> anyhow::Result<Option<Secret>> {
    let Some(name) = variable else {
        return Ok(None);
    };
    let value = settings::variable(name)
        .ok_or_else(|| WrongUse(format!("{flag}: the variable {name} is not set")))?;
    Ok(Some(Secret::new(value)))
}
