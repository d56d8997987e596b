//! The real `opencode serve` on this machine, and a relay in front of it that can be cut.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rollcage_live::client::{Client, Credentials, Health};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::CONTEXT;
use crate::agents::shared_home;
use crate::support::open_engine;

pub(crate) struct Server {
    process: Child,
    pub(super) port: u16,
    credentials: Credentials,
    pub(crate) home: tempfile::TempDir,
}

impl Server {
    /// With `m` of this model endpoint; commands need permission.
    pub(crate) async fn start(base_url: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join(".config/opencode");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::create_dir(home.path().join("work")).unwrap();
        let options = json!({"baseURL": base_url, "apiKey": "key"});
        let provider = json!({
            "npm": "@ai-sdk/openai-compatible", "name": "test", "options": options,
            "models": {"m": {"reasoning": true, "limit": {"context": CONTEXT, "output": 1000}}},
        });
        let text = json!({
            "model": "test/m", "small_model": "test/m", "provider": {"test": provider},
            "permission": {"bash": "ask"},
        });
        std::fs::write(config.join("opencode.json"), text.to_string()).unwrap();
        std::fs::write(config.join("models.json"), "{}").unwrap();
        let credentials = Credentials::generate().unwrap();
        let port = free_port().await;
        let process = Command::new(program().await)
            .args(["serve", "--hostname", "127.0.0.1", "--port"])
            .arg(port.to_string())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home.path())
            .env("OPENCODE_SERVER_PASSWORD", &credentials.password)
            .env("OPENCODE_MODELS_PATH", config.join("models.json"))
            .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
            .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
            .env("OPENCODE_DISABLE_LSP_DOWNLOAD", "1")
            .env("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1")
            .env("OPENCODE_PURE", "1")
            .current_dir(home.path().join("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server {
            process,
            port,
            credentials,
            home,
        };
        server.healthy().await;
        server
    }

    async fn healthy(&self) {
        let client = self.client();
        let healthy = async {
            let probe = Duration::from_millis(250);
            while !matches!(client.health(probe).await, Health::Healthy { .. }) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let healthy = tokio::time::timeout(Duration::from_secs(60), healthy);
        healthy.await.expect("opencode serve becomes healthy");
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at(self.port)
    }

    /// A client of the same server behind another port.
    pub(super) fn client_at(&self, port: u16) -> Client {
        let url = format!("http://127.0.0.1:{port}");
        Client::of_url(&url, Some(self.credentials.clone())).unwrap()
    }

    pub(crate) fn work_directory(&self) -> String {
        self.home.path().join("work").to_str().unwrap().to_owned()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) async fn program() -> PathBuf {
    let engine = open_engine(shared_home()).await;
    let (agent, version) = rollcage_agents::find("opencode").unwrap();
    let ready = engine.ready(&*agent, version, &|_| {}).await.unwrap();
    engine.close().await;
    ready.bundle.path.join("bin/opencode")
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

/// Connections by what they ask first, each with what cuts it.
type Connections = watch::Sender<Vec<(String, CancellationToken)>>;

/// Passes connections on until they are cut.
pub(super) struct Relay {
    pub(super) port: u16,
    open: Arc<Connections>,
    _passing: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(watch::channel(Vec::new()).0);
        let mut passing = JoinSet::new();
        let connections = Arc::clone(&open);
        passing.spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                passing.spawn(pass(stream, to, Arc::clone(&connections)));
            }
        });
        Relay {
            port,
            open,
            _passing: passing,
        }
    }

    /// Cuts the connection whose request begins so, once there is one.
    pub(super) async fn cut(&self, beginning: &str) {
        let fits = |connection: &(String, _)| connection.0.starts_with(beginning);
        let mut open = self.open.subscribe();
        let is_there = open.wait_for(|open| open.iter().any(fits));
        let is_there = tokio::time::timeout(super::LONG, is_there).await;
        drop(is_there.expect("such a connection").unwrap());
        self.open.send_modify(|open| {
            for (_, cut) in open.extract_if(.., |connection| fits(connection)) {
                cut.cancel();
            }
        });
    }
}

async fn pass(mut stream: TcpStream, to: u16, open: Arc<Connections>) {
    let mut request = vec![0; 16 << 10];
    let length = stream.read(&mut request).await.unwrap();
    request.truncate(length);
    let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
    server.write_all(&request).await.unwrap();
    let cut = CancellationToken::new();
    let line = String::from_utf8_lossy(&request).into_owned();
    open.send_modify(|open| open.push((line, cut.clone())));
    tokio::select! {
        () = cut.cancelled() => {}
        _ = tokio::io::copy_bidirectional(&mut stream, &mut server) => {}
    }
}
