//! The scripted endpoint's socket, keys and shutdown. `serve` handles the requests.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::log::Log;
use super::scripts::Scripts;
use super::{Script, serve};

/// How long to wait for open answers at shutdown.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How to start the endpoint.
#[derive(Debug, Default)]
pub struct Options {
    /// 0 chooses a free port.
    pub port: u16,
    /// Played for unknown keys and for requests without a key.
    pub default_script: Option<Script>,
    /// Receives a copy of every answer.
    pub log: Option<Arc<Log>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptedError {
    #[error(
        "port {0} on 127.0.0.1 is in use: stop the program that has it, or choose another port (0 takes a free one)"
    )]
    PortInUse(u16),
    #[error("listen on 127.0.0.1 port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("get random bytes for a key from the kernel")]
    Key(#[source] io::Error),
}

/// A running scripted endpoint. Dropping it stops it without waiting; [`ScriptedEndpoint::close`] waits.
#[derive(Debug)]
pub struct ScriptedEndpoint {
    address: SocketAddr,
    scripts: Arc<Scripts>,
    stop: CancellationToken,
    tasks: TaskTracker,
    listening: AbortHandle,
}

/// Removes a script's key when dropped, at the end of a rollout.
#[derive(Debug)]
pub struct Lease {
    key: String,
    scripts: Arc<Scripts>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.scripts.forget(&self.key);
    }
}

impl ScriptedEndpoint {
    /// Listens on 127.0.0.1 and serves until closed or dropped.
    pub async fn start(options: Options) -> Result<ScriptedEndpoint, ScriptedError> {
        let port = options.port;
        let listen_error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ScriptedError::PortInUse(port),
            _ => ScriptedError::Listen { port, source },
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let scripts = Arc::new(Scripts::new(options.default_script, options.log));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        // Otherwise the small writes of a stream wait for delayed acknowledgements.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no TCP_NODELAY on a scripted connection");
            }
        });
        let router = Router::new()
            .fallback(serve::answer)
            .with_state(Arc::clone(&scripts));
        let serving =
            axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tasks.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the scripted endpoint stopped");
            }
        });
        tasks.close();
        Ok(ScriptedEndpoint {
            address,
            scripts,
            stop,
            tasks,
            listening: task.abort_handle(),
        })
    }

    /// The base URL for OpenAI clients.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// The base URL for Anthropic's and Gemini's clients, which add the version themselves.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Adds a script and returns the API key that plays it.
    pub fn add(&self, script: Script) -> Result<String, ScriptedError> {
        let key = random_key().map_err(ScriptedError::Key)?;
        self.scripts.add(key.clone(), script);
        Ok(key)
    }

    /// Removes the key when the returned lease is dropped.
    pub fn lease(&self, key: &str) -> Lease {
        Lease {
            key: key.to_owned(),
            scripts: Arc::clone(&self.scripts),
        }
    }

    /// Removes a key. Answers in progress continue.
    pub fn remove(&self, key: &str) {
        self.scripts.forget(key);
    }

    /// Stops listening and waits for open answers, up to a limit.
    pub async fn close(&self) {
        self.stop.cancel();
        if tokio::time::timeout(CLOSE_LIMIT, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("the scripted endpoint still had open answers when it closed");
            self.listening.abort();
        }
    }
}

impl Drop for ScriptedEndpoint {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)?;
    let digits = base16ct::lower::encode_string(&bytes);
    Ok(format!("sk-scripted-{digits}"))
}
