//! Model servers that we find or start ourselves: Ollama, and commands from a user's settings. Each is started once per
//! process when a rollout first needs it, shared by all that do, and stopped at the end.

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
use process::{Launch, Process, find_program, free_port};

pub(crate) use ollama::host_url;

/// For one look whether an Ollama server is there.
const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// `ollama serve` looks for graphics cards before it answers.
const OLLAMA_READY_LIMIT: Duration = Duration::from_secs(60);
const OLLAMA: &str = "ollama";
/// The log of a server that did not come up is there to be read.
const LOG_KEPT: Duration = Duration::from_secs(24 * 3600);

/// An endpoint whose server is ours to find or start. Until then its URL and its model are what was asked for.
#[derive(Clone, Debug)]
pub struct Managed {
    pub endpoint: Endpoint,
    pub server: Server,
    /// Where programs are looked for.
    pub search_path: Option<String>,
}

impl Managed {
    /// Where the server is looked for, or what is known of where it will be.
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
        /// Without a path.
        host: String,
        start: StartPolicy,
        wanted: Wanted,
    },
    Command(Arc<CommandServer>),
}

/// What an Ollama server is asked to give a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub context_tokens: u64,
    /// How long the model stays loaded after a call; a server's own setting where nothing is said.
    pub keep_alive: Option<String>,
}

/// What to do when no server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPolicy {
    Start,
    /// It is somebody else's, on another machine or at a URL that was given.
    Fail,
}

/// Something that takes a while, for whoever shows progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
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
        /// Of what is known so far; 0 when nothing is.
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

pub type OnStep<'a> = &'a (dyn Fn(&Step) + Send + Sync);

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

/// What is made once by whoever needs it first, by name.
type Slots<T> = Mutex<HashMap<String, Arc<OnceCell<T>>>>;

/// The servers of this process.
pub struct Servers {
    /// Logs of servers that run lie here.
    directory: PathBuf,
    running: Slots<Arc<Running>>,
    /// Ollama's models that are ready, by server and name.
    models: Slots<(String, u64)>,
}

struct Running {
    /// Where it is asked; Ollama's has no path.
    url: String,
    /// None when the server was there before us.
    process: Mutex<Option<Process>>,
    is_ours: bool,
}

impl Running {
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

    /// The endpoint to ask, once its server runs and has the model.
    pub async fn endpoint(
        &self,
        managed: &Managed,
        on_step: OnStep<'_>,
    ) -> Result<Endpoint, ServingError> {
        let mut endpoint = managed.endpoint.clone();
        match &managed.server {
            Server::Ollama {
                host,
                start,
                wanted,
            } => {
                let name = format!("{OLLAMA} {host}");
                let search_path = managed.search_path.as_deref();
                let guard = managed.endpoint.guard.as_ref();
                let place = (host.as_str(), guard);
                let begin = self.find_or_start(place, (*start, search_path), wanted, on_step);
                let running = self.running(&name, begin).await?;
                let cell = slot(&self.models, &format!("{} {}", running.url, endpoint.model));
                let client = client_for(&running.url, guard)?;
                let server = Ollama {
                    client: &client,
                    host: &running.url,
                    has_context: running.is_ours,
                };
                let prepare = || server.prepare(&endpoint.model, wanted, on_step);
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
        on_step(&Step::Done);
        Ok(endpoint)
    }

    /// The one server of that name: running already, being started by somebody else, or started now.
    async fn running(
        &self,
        name: &str,
        begin: impl Future<Output = Result<Running, ServingError>>,
    ) -> Result<Arc<Running>, ServingError> {
        let cell = {
            let mut known = lock(&self.running);
            let is_dead = |cell: &Arc<OnceCell<Arc<Running>>>| {
                cell.get().is_some_and(|running| !running.is_alive())
            };
            // One that died is started again rather than asked in vain.
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
        wanted: &Wanted,
        on_step: OnStep<'_>,
    ) -> Result<Running, ServingError> {
        let client = client_for(host, guard)?;
        let found = Ollama {
            client: &client,
            host,
            has_context: false,
        };
        if found.is_there(LOOK_LIMIT).await {
            return Ok(Running {
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
        let keep_alive = wanted.keep_alive.as_deref().unwrap_or(ollama::KEEP_ALIVE);
        let env = [
            ("OLLAMA_HOST", format!("127.0.0.1:{port}")),
            ("OLLAMA_CONTEXT_LENGTH", wanted.context_tokens.to_string()),
            ("OLLAMA_KEEP_ALIVE", keep_alive.to_owned()),
        ];
        let url = format!("http://127.0.0.1:{port}");
        let launch = Launch {
            name: OLLAMA.to_owned(),
            command: vec![program.display().to_string(), "serve".to_owned()],
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            log: self.log(OLLAMA, port)?,
        };
        let ready = (format!("{url}/api/version"), OLLAMA_READY_LIMIT);
        let process = launch_and_wait(launch, &ready, on_step).await?;
        Ok(Running {
            url,
            process: Mutex::new(Some(process)),
            is_ours: true,
        })
    }

    async fn start_command(
        &self,
        managed: &Managed,
        server: &CommandServer,
        on_step: OnStep<'_>,
    ) -> Result<Running, ServingError> {
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
        let launch = Launch {
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
        Ok(Running {
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

    /// A log of this server's own. Old ones of processes that are gone are removed on the way.
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
            let is_left =
                log_owner(&entry.file_name().to_string_lossy()).is_some_and(|pid| !is_running(pid));
            if is_left && is_old(&entry) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(self
            .directory
            .join(format!("{}-{name}-{port}.log", std::process::id())))
    }

    /// Stops what was started, all at once. Nothing may be started afterwards.
    pub async fn close(&self) {
        let running: Vec<_> = lock(&self.running).drain().collect();
        let processes = running
            .iter()
            .filter_map(|(_, cell)| lock(&cell.get()?.process).take());
        futures::future::join_all(processes.map(Process::stop)).await;
    }
}

async fn launch_and_wait(
    launch: Launch,
    (ready, limit): &(String, Duration),
    on_step: OnStep<'_>,
) -> Result<Process, ServingError> {
    let name = launch.name.clone();
    on_step(&Step::Starting { name: name.clone() });
    let since = Instant::now();
    let client = client_for(ready, None)?;
    let mut process = Process::start(launch)?;
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
    on_step(&Step::Started {
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

fn slot<T>(slots: &Slots<T>, name: &str) -> Arc<OnceCell<T>> {
    Arc::clone(lock(slots).entry(name.to_owned()).or_default())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
