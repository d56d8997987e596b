//! The scripted endpoint on a socket: keys and closing. `serve` answers.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drill::{self, Conversation, Drill, Played};
use super::log::Log;
use super::player::{PlayError, Reply};
use super::request::ChatRequest;
use super::{Script, serve};

/// How long open answers may take to finish once the endpoint is asked to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How to start the endpoint.
#[derive(Debug, Default)]
pub struct Options {
    /// 0 takes a free one.
    pub port: u16,
    /// Played for every key that was not added, and for requests without one.
    pub default_script: Option<Script>,
    /// Gets a copy of every answer.
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
    #[error("read random bytes for a key from /dev/urandom")]
    Key(#[source] io::Error),
}

/// A running scripted endpoint. Dropping it stops it without waiting; [`Scripted::close`] waits.
#[derive(Debug)]
pub struct Scripted {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
    listening: AbortHandle,
}

/// A script's key for the time of one rollout.
#[derive(Debug)]
pub struct Lease {
    key: String,
    shared: Arc<Shared>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.forget(&self.key);
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    scripts: RwLock<HashMap<String, Arc<Script>>>,
    default_script: Option<Arc<Script>>,
    /// How far each conversation of a drill is, by key.
    places: Mutex<HashMap<(String, Conversation), usize>>,
    pub(super) log: Option<Arc<Log>>,
}

impl Scripted {
    /// Listens on 127.0.0.1 and serves until closed or dropped.
    pub async fn start(options: Options) -> Result<Scripted, ScriptedError> {
        let port = options.port;
        let listen_error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ScriptedError::PortInUse(port),
            _ => ScriptedError::Listen { port, source },
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let shared = Arc::new(Shared {
            scripts: RwLock::default(),
            default_script: options.default_script.map(Arc::new),
            places: Mutex::default(),
            log: options.log,
        });
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        // Otherwise the small writes of a stream wait for acknowledgements that the other side delays.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no TCP_NODELAY on a scripted connection");
            }
        });
        let router = Router::new()
            .fallback(serve::answer)
            .with_state(Arc::clone(&shared));
        let serving =
            axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tasks.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the scripted endpoint stopped");
            }
        });
        tasks.close();
        Ok(Scripted {
            address,
            shared,
            stop,
            tasks,
            listening: task.abort_handle(),
        })
    }

    /// What an OpenAI client takes as its base URL.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// What a client of Anthropic or Gemini takes as its base URL: these put the version in themselves.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Takes a script and returns the API key that plays it.
    pub fn add(&self, script: Script) -> Result<String, ScriptedError> {
        let key = random_key().map_err(ScriptedError::Key)?;
        let mut scripts = self
            .shared
            .scripts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        scripts.insert(key.clone(), Arc::new(script));
        Ok(key)
    }

    /// Keeps a key for as long as the answer lives, then forgets it.
    pub fn lease(&self, key: &str) -> Lease {
        Lease {
            key: key.to_owned(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Forgets a key; answers that are under way go on.
    pub fn remove(&self, key: &str) {
        self.shared.forget(key);
    }

    /// Stops listening and waits for open answers, but not for ever.
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

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    fn forget(&self, key: &str) {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        scripts.remove(key);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|(owner, _), _| owner != key);
    }

    /// The next reply of a key's drill.
    pub(super) fn next_of_drill(
        &self,
        key: &str,
        request: &ChatRequest,
        drill: (&Drill, &str),
    ) -> Result<(Reply, Played), PlayError> {
        let conversation = drill::conversation(request);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry((key.to_owned(), conversation)).or_default();
        let (reply, played, next) = drill::next(request, drill, conversation, *place)?;
        if conversation != Conversation::Aside {
            *place = next;
        }
        Ok((reply, played))
    }

    /// The script that a key plays.
    pub(super) fn script(&self, key: &str) -> Option<Arc<Script>> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        let script = scripts.get(key).or(self.default_script.as_ref())?;
        Some(Arc::clone(script))
    }
}

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 24];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sk-scripted-{digits}"))
}
