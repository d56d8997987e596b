//! Model servers that we find or start: Ollama, and commands from the user's servers file. Each is started once per
//! process when a rollout first needs it, shared by all rollouts, and stopped at the end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use crate::check::normalise;
use rollcage_proxy::Unusable;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{ClientError, Guard, client_for};
use rollcage_proxy::settle_model;

pub mod command;
mod ollama;
mod process;

use command::{CommandServer, fill};
use ollama::Ollama;
use process::{ServerLaunch, ServerProcess, find_program, free_port};

pub(crate) use ollama::host_url;

/// Timeout of a check whether an Ollama server is running.
const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// Long, because `ollama serve` looks for GPUs before it answers.
const OLLAMA_READY_LIMIT: Duration = Duration::from_secs(60);
const OLLAMA: &str = "ollama";
/// How long to keep the logs of servers that failed to start, so that users can read them.
const LOG_KEPT: Duration = Duration::from_secs(24 * 3600);

/// An endpoint whose server we find or start. Until then its URL and model are the requested ones.
#[derive(Clone, Debug)]
pub struct ManagedEndpoint {
    pub endpoint: Endpoint,
    pub server: Server,
    /// Where to look for programs.
    pub search_path: Option<String>,
}

impl ManagedEndpoint {
    /// Where to look for the server, or the URL template of one to be started.
    pub fn url(&self) -> String {
        match &self.server {
            Server::Ollama { host, .. } => format!("{host}/v1"),
            Server::Command(server) => server.base_url.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Server {
    Ollama {
        /// A URL without a path.
        host: String,
        start: StartPolicy,
        settings: OllamaSettings,
    },
    Command(Arc<CommandServer>),
}

/// Per-model settings of an Ollama server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaSettings {
    pub context_tokens: u64,
    /// How long the model stays loaded after a call; `None` for the server's own setting.
    pub keep_alive: Option<String>,
}

/// What to do if no server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPolicy {
    Start,
    /// Not ours to start: it is on another machine or at an explicit URL.
    Fail,
}

/// A slow step of finding or starting a server, for progress displays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingStep {
    Starting {
        name: String,
    },
    Started {
        name: String,
        url: String,
    },
    Pulling {
        model: String,
        status: String,
        completed: u64,
        /// In bytes, of the parts known so far; 0 if none is.
        total: u64,
    },
    Widening {
        model: String,
        context_tokens: u64,
    },
    Loading {
        model: String,
    },
    Done,
}

pub type OnServingStep<'a> = &'a (dyn Fn(&ServingStep) + Send + Sync);

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(
        "no Ollama server answers at {host}, and there is no program `ollama` on the search path to start one: \
         install it (https://ollama.com/download), or set OLLAMA_HOST to where it runs"
    )]
    NoOllama { host: String },
    #[error(
        "no Ollama server answers at {host}: is it running, and is OLLAMA_HOST or the URL right?"
    )]
    OllamaAway { host: String },
    #[error("the server `{name}` cannot be started: there is no program `{program}`")]
    NoProgram { name: String, program: String },
    #[error("start the server `{name}`")]
    Start {
        name: String,
        source: std::io::Error,
    },
    #[error("the server `{name}` ended while it started ({status}); {tail}\n  ({log})", log = log.display())]
    Exited {
        name: String,
        status: String,
        tail: String,
        log: PathBuf,
    },
    #[error(
        "the server `{name}` did not answer at {url} within {limit_s} seconds; {tail}\n  ({log})",
        log = log.display()
    )]
    NotReady {
        name: String,
        url: String,
        limit_s: f64,
        tail: String,
        log: PathBuf,
    },
    #[error("{what} the model `{model}` with the Ollama server at {host}: {problem}")]
    Model {
        what: &'static str,
        model: String,
        host: String,
        problem: String,
    },
    #[error("{0}")]
    Endpoint(String),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Values by name, each created once by the first caller that needs it.
type OnceMap<T> = Mutex<HashMap<String, Arc<OnceCell<T>>>>;

/// The managed servers of this process.
pub struct Servers {
    /// Contains the logs of running servers.
    directory: PathBuf,
    running: OnceMap<Arc<RunningServer>>,
    /// Ollama models that are ready, with their context, by server and name.
    models: OnceMap<(String, u64)>,
}

struct RunningServer {
    /// The base URL; for Ollama without a path.
    url: String,
    /// `None` if the server was already running.
    process: Mutex<Option<ServerProcess>>,
    is_ours: bool,
}

impl RunningServer {
    fn is_alive(&self) -> bool {
        let mut process = lock(&self.process);
        !self.is_ours
            || process
                .as_mut()
                .is_some_and(|process| !process.has_exited())
    }
}

impl Servers {
    pub fn new(home: &std::path::Path) -> Self {
        Servers {
            directory: home.join("servers"),
            running: Mutex::default(),
            models: Mutex::default(),
        }
    }

    /// Makes sure that the server runs and has the model; returns the endpoint to use.
    pub async fn endpoint(
        &self,
        managed: &ManagedEndpoint,
        on_step: OnServingStep<'_>,
    ) -> Result<Endpoint, ServingError> {
        let mut endpoint = managed.endpoint.clone();
        match &managed.server {
            Server::Ollama {
                host,
                start,
                settings,
            } => {
                let name = format!("{OLLAMA} {host}");
                let search_path = managed.search_path.as_deref();
                let guard = managed.endpoint.guard.as_ref();
                let place = (host.as_str(), guard);
                let begin = self.find_or_start(place, (*start, search_path), settings, on_step);
                let running = self.running(&name, begin).await?;
                let cell = slot(&self.models, &format!("{} {}", running.url, endpoint.model));
                let client = client_for(&running.url, guard)?;
                let server = Ollama {
                    client: &client,
                    host: &running.url,
                    has_context: running.is_ours,
                };
                let prepare = || server.prepare(&endpoint.model, settings, on_step);
                let (model, context) = cell.get_or_try_init(prepare).await?.clone();
                endpoint.base_url = format!("{}/v1", running.url);
                endpoint.model = model;
                endpoint.context_tokens = Some(context);
            }
            Server::Command(server) => {
                let name = if server.needs_model() {
                    format!("{} {}", server.name, endpoint.model)
                } else {
                    server.name.clone()
                };
                let begin = self.start_command(managed, server, on_step);
                let running = self.running(&name, begin).await?;
                endpoint.base_url.clone_from(&running.url);
                let client = client_for(&endpoint.base_url, None)?;
                let failed = |error: Unusable| ServingError::Endpoint(error.to_string());
                let settled = settle_model(&client, &mut endpoint).await;
                settled.map_err(failed)?;
            }
        }
        on_step(&ServingStep::Done);
        Ok(endpoint)
    }

    /// The server of this name; starts it unless it is running or another task is starting it.
    async fn running(
        &self,
        name: &str,
        begin: impl Future<Output = Result<RunningServer, ServingError>>,
    ) -> Result<Arc<RunningServer>, ServingError> {
        let cell = {
            let mut known = lock(&self.running);
            let is_dead = |cell: &Arc<OnceCell<Arc<RunningServer>>>| {
                cell.get().is_some_and(|running| !running.is_alive())
            };
            // A server that died is started again.
            if known.get(name).is_some_and(is_dead) {
                known.remove(name);
            }
            Arc::clone(known.entry(name.to_owned()).or_default())
        };
        let started = cell.get_or_try_init(|| async { begin.await.map(Arc::new) });
        started.await.cloned()
    }

    async fn find_or_start(
        &self,
        (host, guard): (&str, Option<&Arc<Guard>>),
        (start, search_path): (StartPolicy, Option<&str>),
        settings: &OllamaSettings,
        on_step: OnServingStep<'_>,
    ) -> Result<RunningServer, ServingError> {
        let client = client_for(host, guard)?;
        let found = Ollama {
            client: &client,
            host,
            has_context: false,
        };
        if found.is_there(LOOK_LIMIT).await {
            return Ok(RunningServer {
                url: host.to_owned(),
                process: Mutex::new(None),
                is_ours: false,
            });
        }
        let host = host.to_owned();
        if start == StartPolicy::Fail {
            return Err(ServingError::OllamaAway { host });
        }
        let Some(program) = find_program(OLLAMA, search_path) else {
            return Err(ServingError::NoOllama { host });
        };
        let port = self.free_port(OLLAMA)?;
        let keep_alive = settings.keep_alive.as_deref().unwrap_or(ollama::KEEP_ALIVE);
        let env = [
            ("OLLAMA_HOST", format!("127.0.0.1:{port}")),
            ("OLLAMA_CONTEXT_LENGTH", settings.context_tokens.to_string()),
            ("OLLAMA_KEEP_ALIVE", keep_alive.to_owned()),
        ];
        let url = format!("http://127.0.0.1:{port}");
        let launch = ServerLaunch {
            name: OLLAMA.to_owned(),
            command: vec![program.display().to_string(), "serve".to_owned()],
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            log: self.log(OLLAMA, port)?,
        };
        let ready = (format!("{url}/api/version"), OLLAMA_READY_LIMIT);
        let process = launch_and_wait(launch, &ready, on_step).await?;
        Ok(RunningServer {
            url,
            process: Mutex::new(Some(process)),
            is_ours: true,
        })
    }

    async fn start_command(
        &self,
        managed: &ManagedEndpoint,
        server: &CommandServer,
        on_step: OnServingStep<'_>,
    ) -> Result<RunningServer, ServingError> {
        let name = server.name.clone();
        let port = self.free_port(&name)?;
        let filled = |text: &String| fill(text, port, &managed.endpoint.model);
        let mut command: Vec<_> = server.command.iter().map(filled).collect();
        let program = command.first().cloned().unwrap_or_default();
        let search_path = server.env.get("PATH").or(managed.search_path.as_ref());
        let Some(found) = find_program(&program, search_path.map(String::as_str)) else {
            return Err(ServingError::NoProgram { name, program });
        };
        if let Some(first) = command.first_mut() {
            *first = found.display().to_string();
        }
        let url = normalise(&filled(&server.base_url), "/v1")
            .map_err(|error| ServingError::Endpoint(error.to_string()))?;
        let ready = match &server.ready {
            Some(path) => format!("{}{path}", origin(&url)),
            None => format!("{url}/models"),
        };
        let launch = ServerLaunch {
            command,
            env: server
                .env
                .iter()
                .map(|(name, value)| (name.clone(), filled(value)))
                .collect(),
            log: self.log(&name, port)?,
            name,
        };
        let process = launch_and_wait(launch, &(ready, server.ready_limit), on_step).await?;
        Ok(RunningServer {
            url,
            process: Mutex::new(Some(process)),
            is_ours: true,
        })
    }

    fn free_port(&self, name: &str) -> Result<u16, ServingError> {
        free_port().map_err(|source| ServingError::Start {
            name: name.to_owned(),
            source,
        })
    }

    /// The path of a new log. Also removes old logs of processes that have ended.
    fn log(&self, name: &str, port: u16) -> Result<PathBuf, ServingError> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|source| ServingError::Start {
                name: name.to_owned(),
                source,
            })?;
        for entry in std::fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let is_orphaned =
                log_owner(&entry.file_name().to_string_lossy()).is_some_and(|pid| !is_running(pid));
            if is_orphaned && is_old(&entry) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(self
            .directory
            .join(format!("{}-{name}-{port}.log", std::process::id())))
    }

    /// Stops all servers that we started, concurrently. Nothing may be started afterwards.
    pub async fn close(&self) {
        let running: Vec<_> = lock(&self.running).drain().collect();
        let processes = running
            .iter()
            .filter_map(|(_, cell)| lock(&cell.get()?.process).take());
        futures::future::join_all(processes.map(ServerProcess::stop)).await;
    }
}

async fn launch_and_wait(
    launch: ServerLaunch,
    (ready, limit): &(String, Duration),
    on_step: OnServingStep<'_>,
) -> Result<ServerProcess, ServingError> {
    let name = launch.name.clone();
    on_step(&ServingStep::Starting { name: name.clone() });
    let since = Instant::now();
    let client = client_for(ready, None)?;
    let mut process = ServerProcess::start(launch)?;
    if let Err(error) = process.wait_ready(&client, ready, *limit).await {
        process.end().await;
        return Err(error);
    }
    tracing::info!(
        name,
        ready,
        after_s = since.elapsed().as_secs_f64(),
        "a model server is ready"
    );
    on_step(&ServingStep::Started {
        name,
        url: origin(ready),
    });
    Ok(process)
}

/// `4711-local-40123.log` belongs to process 4711.
fn log_owner(name: &str) -> Option<u32> {
    name.strip_suffix(".log")?.split_once('-')?.0.parse().ok()
}

fn is_old(entry: &std::fs::DirEntry) -> bool {
    let changed = entry.metadata().and_then(|file| file.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LOG_KEPT))
}

fn is_running(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

/// A URL without its path.
pub(crate) fn origin(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => url.to_owned(),
    }
}

fn slot<T>(slots: &OnceMap<T>, name: &str) -> Arc<OnceCell<T>> {
    Arc::clone(lock(slots).entry(name.to_owned()).or_default())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
