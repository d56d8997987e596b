//! The real `opencode serve`, started, watched and ended: on this machine, and in a sandbox.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rollcage_live::client::{NewSession, Prompt};
use rollcage_live::forward::{ForwardTarget, Forwarder};
use rollcage_live::place::ServeCommand;
use rollcage_live::server::SILENCE_MAX;
use rollcage_live::{
    Client, Company, Credentials, Health, HostPlace, LiveServer, Place, Provider, SandboxPlace,
    ServerOptions, StartError, write_config,
};
use rollcage_model::script::Step;
use rollcage_sandbox::guest::{BUNDLE_DIR, HOME};
use rollcage_sandbox::{Command, Limits, Sandbox, Sandboxes, Spec};
use rollcage_scripted::{Options, Script, ScriptedEndpoint};
use rollcage_testkit::upstream::{Reply, Upstream};

use crate::agents::shared_home;
use crate::support::{open_engine, sandboxes};

/// In the environment of everything that a test starts.
const TEST_MARK: &str = "ROLLCAGE_TEST_MARK";
const FILES: [(&str, &str); 5] = [
    ("rollcage-models.json", "{}"),
    ("node_modules/.keep", ""),
    (".gitignore", "node_modules\n"),
    (
        "package.json",
        r#"{"dependencies":{"@opencode-ai/plugin":"*"}}"#,
    ),
    (
        "package-lock.json",
        r#"{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}"#,
    ),
];

async fn ready() -> rollcage_agents::ReadyAgent {
    let engine = open_engine(shared_home()).await;
    let (agent, version) = rollcage_agents::find("opencode").unwrap();
    let ready = engine.ready(&*agent, version, &|_| {}).await.unwrap();
    engine.close().await;
    ready
}

/// A home of its own, and what an agent's server needs in it.
struct Agent {
    directory: tempfile::TempDir,
    mark: String,
    program: PathBuf,
}

impl Agent {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().file_name().unwrap().to_str().unwrap();
        let agent = Agent {
            mark: mark.to_owned(),
            program: ready().await.bundle.path.join("bin/opencode"),
            directory,
        };
        agent.configure("http://127.0.0.1:9/v1");
        for (path, text) in FILES {
            let path = agent.home().join(".config/opencode").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::create_dir(agent.home().join("work")).unwrap();
        agent
    }

    fn home(&self) -> &Path {
        self.directory.path()
    }

    fn configure(&self, base_url: &str) -> PathBuf {
        let provider = Provider {
            name: "rollcage".to_owned(),
            base_url: base_url.to_owned(),
            key: "sk-live-3".to_owned(),
            models: vec!["team/scripted".to_owned()],
        };
        write_config(self.home(), &provider).unwrap()
    }

    fn options(&self, port: u16) -> ServerOptions {
        let program = self.program.to_str().unwrap();
        ServerOptions {
            argv: serve_command(program),
            env: environment(self.home().to_str().unwrap(), &self.mark),
            cwd: self.home().join("work").to_str().unwrap().to_owned(),
            port,
            credentials: Credentials::generate().unwrap(),
            deadline: Duration::from_secs(60),
            poll: Duration::from_millis(50),
            silence_max: SILENCE_MAX,
            log: self.home().join("serve.log"),
        }
    }

    fn server(&self, options: ServerOptions) -> Arc<LiveServer> {
        LiveServer::new(Arc::new(HostPlace::default()), options)
    }

    /// The processes of this test, by id and command line.
    fn processes(&self) -> Vec<(i32, String)> {
        processes(&self.mark)
    }

    fn runs(&self, text: &str) -> bool {
        let all = self.processes();
        all.iter().any(|(_, line)| line.contains(text))
    }

    fn the_server(&self) -> i32 {
        the_server(&self.mark)
    }
}

/// A minute at most.
async fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come to that");
}

fn serve_command(program: &str) -> Vec<String> {
    let arguments = ["serve", "--hostname", "127.0.0.1", "--port", "{port}"];
    let argv = std::iter::once(program).chain(arguments);
    argv.map(str::to_owned).collect()
}

fn environment(home: &str, mark: &str) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("HOME".to_owned(), home.to_owned()),
        ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        (TEST_MARK.to_owned(), mark.to_owned()),
        (
            "OPENCODE_MODELS_PATH".to_owned(),
            format!("{home}/.config/opencode/rollcage-models.json"),
        ),
    ]);
    for name in [
        "DISABLE_MODELS_FETCH",
        "DISABLE_AUTOUPDATE",
        "DISABLE_LSP_DOWNLOAD",
        "DISABLE_DEFAULT_PLUGINS",
        "PURE",
        "DISABLE_CLAUDE_CODE",
        "DISABLE_EXTERNAL_SKILLS",
    ] {
        env.insert(format!("OPENCODE_{name}"), "1".to_owned());
    }
    env
}

fn processes(mark: &str) -> Vec<(i32, String)> {
    let expect = format!("{TEST_MARK}={mark}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The environment of a process that has ended is empty.
    let marked = pids.filter(|pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == expect.as_bytes())
    });
    let shown = marked.map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&line).replace('\0', " "))
    });
    shown.collect()
}

fn the_server(mark: &str) -> i32 {
    let all = processes(mark);
    let is_server = |line: &str| line.contains("opencode serve --hostname");
    let servers: Vec<_> = all.iter().filter(|(_, line)| is_server(line)).collect();
    let [(pid, _)] = servers[..] else {
        panic!("exactly one server: {all:?}");
    };
    *pid
}

async fn start_ten(server: &LiveServer) {
    let starts = (0..10).map(|_| server.ensure_running());
    let results = futures::future::join_all(starts).await;
    let started: Vec<bool> = results.into_iter().map(Result::unwrap).collect();
    let new = started.iter().filter(|is_new| **is_new);
    assert_eq!(new.count(), 1, "{started:?}");
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_starts_are_one_process_and_a_stop_leaves_none() {
    let agent = Agent::new().await;
    let steps = vec![
        Step::shell("setsid sleep 86421 > /dev/null 2>&1 < /dev/null & echo on"),
        Step::shell("sleep 86422"),
    ];
    let endpoint = ScriptedEndpoint::start(Options {
        default_script: Some(Script::new(steps)),
        ..Options::default()
    });
    let endpoint = endpoint.await.unwrap();
    let config = agent.configure(&endpoint.base_url());
    assert_eq!(mode(&config), 0o600);
    assert_eq!(mode(config.parent().unwrap()), 0o700);

    let server = agent.server(agent.options(0));
    start_ten(&server).await;
    let pid = agent.the_server();
    assert!(matches!(server.health().await, Health::Healthy { .. }));
    assert_eq!(mode(&agent.home().join("serve.log")), 0o600);

    // All that follows goes through an address of ours, with a password of its own.
    let outer = Credentials::generate().unwrap();
    let target = Arc::clone(&server) as Arc<dyn ForwardTarget>;
    let forwarder = Forwarder::start(target, outer.clone()).await.unwrap();
    let of_url = |credentials| Client::of_url(&forwarder.base_url(), Some(credentials)).unwrap();
    let (_, inner) = server.target().unwrap();
    let limit = Duration::from_secs(10);
    assert_eq!(of_url(inner).health(limit).await, Health::Foreign);
    let client = of_url(outer);
    assert!(matches!(client.health(limit).await, Health::Healthy { .. }));
    let mut events = client.global_events().await.unwrap();
    let first = tokio::time::timeout(limit, events.next()).await;
    assert!(first.expect("events flow at once").is_some());
    let session = NewSession {
        title: "t".to_owned(),
        directory: None,
    };
    let session = client.create_session(&session).await.unwrap();
    let prompt = Prompt {
        text: "go".to_owned(),
        ..Prompt::default()
    };
    let turn = client.message(&session, &prompt);
    let stopping = async {
        wait_until(|| agent.runs("sleep 86422")).await;
        assert!(agent.runs("sleep 86421"), "{:?}", agent.processes());
        assert_eq!(agent.the_server(), pid);
        server.stop().await;
        assert_eq!(agent.processes(), []);
    };
    let (answer, ()) = tokio::join!(turn, stopping);
    answer.unwrap_err();
    assert!(!server.is_running());
    let log = std::fs::read_to_string(agent.home().join("serve.log")).unwrap();
    assert!(log.contains("listening on http://127.0.0.1:"), "{log}");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_replaced_by_exactly_one() {
    let agent = Agent::new().await;
    let server = agent.server(ServerOptions {
        silence_max: Duration::from_secs(1),
        ..agent.options(free_port())
    });
    server.ensure_running().await.unwrap();
    let hung = agent.the_server();
    kill(Pid::from_raw(hung), Signal::SIGSTOP).unwrap();
    assert_eq!(server.health().await, Health::Silent);
    let turn = server.turn_in_progress();
    assert!(
        !server.ensure_running().await.unwrap(),
        "a turn may be slow"
    );
    drop(turn);
    start_ten(&server).await;
    assert_ne!(agent.the_server(), hung);
    assert!(matches!(server.health().await, Health::Healthy { .. }));
    server.close().await;
    assert_eq!(agent.processes(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_started_again_with_its_sessions() {
    let agent = Agent::new().await;
    let server = agent.server(agent.options(0));
    server.ensure_running().await.unwrap();
    let session = NewSession {
        title: "kept".to_owned(),
        directory: None,
    };
    let session = server.client().unwrap().create_session(&session).await;
    let session = session.unwrap();
    let killed = agent.the_server();
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    assert_eq!(server.ended().await, "signal 9");
    start_ten(&server).await;
    assert_ne!(agent.the_server(), killed);
    let found = server.client().unwrap().session(&session).await.unwrap();
    assert_eq!(found.id, session);
    // Dropped without a word.
    drop(server);
    wait_until(|| agent.processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_left_to_whoever_has_it() {
    let agent = Agent::new().await;
    let port = free_port();
    let first = agent.server(agent.options(port));
    first.ensure_running().await.unwrap();
    let pid = agent.the_server();
    let second = agent.server(agent.options(port));
    let error = second.ensure_running().await.unwrap_err();
    assert!(matches!(error, StartError::PortTaken(taken) if taken == port));
    assert_eq!(agent.the_server(), pid);
    assert!(matches!(first.health().await, Health::Healthy { .. }));
    first.stop().await;

    let refusing = Upstream::start(|_, _| Reply::Whole {
        status: 401,
        content_type: "text/plain",
        body: String::new(),
    });
    let refusing = refusing.unwrap();
    let url = refusing.base_url().trim_end_matches("/v1").to_owned();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [
        url.rsplit_once(':').unwrap().1.parse().unwrap(),
        silent.local_addr().unwrap().port(),
    ];
    for port in ports {
        let server = agent.server(agent.options(port));
        let error = server.ensure_running().await.unwrap_err();
        assert!(matches!(error, StartError::PortTaken(taken) if taken == port));
        assert_eq!(agent.processes(), []);
    }
}

/// The real server's own way to say so, in case somebody comes between our look and its start.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_finds_its_port_taken_ends_by_itself() {
    let agent = Agent::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let command = ServeCommand {
        argv: serve_command(agent.program.to_str().unwrap())
            .into_iter()
            .map(|part| part.replace("{port}", &port.to_string()))
            .collect(),
        env: environment(agent.home().to_str().unwrap(), &agent.mark),
        cwd: String::new(),
    };
    let mut process = HostPlace::default().spawn(command).await.unwrap();
    let limit = Duration::from_secs(60);
    let exit = tokio::time::timeout(limit, process.wait()).await;
    assert_eq!(exit.expect("it ends").unwrap().code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_past_its_deadline_is_a_timeout_and_leaves_none() {
    let agent = Agent::new().await;
    let server = agent.server(ServerOptions {
        deadline: Duration::from_millis(200),
        ..agent.options(0)
    });
    let error = server.ensure_running().await.unwrap_err();
    assert!(matches!(error, StartError::Timeout(_)), "{error}");
    assert_eq!(agent.processes(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_output_fills_three_files_and_no_more() {
    let agent = Agent::new().await;
    let mut options = agent.options(0);
    let flood = "yes 'a line that says nothing' | head -c 40000000; exec \"$0\" \"$@\"";
    let shell = ["/bin/sh", "-c", flood].map(str::to_owned).into_iter();
    options.argv = shell.chain(options.argv).collect();
    let log = options.log.clone();
    let server = agent.server(options);
    server.ensure_running().await.unwrap();
    server.stop().await;
    for name in ["serve.log", "serve.log.1", "serve.log.2"] {
        let path = log.with_file_name(name);
        let bytes = path.metadata().unwrap().len();
        assert!(bytes <= rollcage_live::log::BYTES_MAX, "{name}: {bytes}");
        assert_eq!(mode(&path), 0o600);
    }
    assert!(!log.with_file_name("serve.log.3").exists());
    let tail = rollcage_live::log::read_tail(&log, 100).unwrap();
    assert!(tail.contains("listening on"), "{tail}");
    assert_eq!(agent.processes(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_an_earlier_process_is_adopted_or_ended() {
    let agent = Agent::new().await;
    let port = free_port();
    let options = agent.options(port);
    let place = HostPlace::default();
    for is_ours in [true, false] {
        let mut env = options.env.clone();
        let password = match is_ours {
            true => options.credentials.password.clone(),
            false => "another".to_owned(),
        };
        env.insert("OPENCODE_SERVER_PASSWORD".to_owned(), password);
        let argv = options.argv.iter();
        let command = ServeCommand {
            argv: argv
                .map(|part| part.replace("{port}", &port.to_string()))
                .collect(),
            env,
            cwd: options.cwd.clone(),
        };
        let earlier = place.spawn(command).await.unwrap();
        let identity = earlier.identity().unwrap();
        // As if this process had been killed: nobody ends it, nobody reads what it prints.
        std::mem::forget(earlier);
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::of_url(&url, Some(options.credentials.clone())).unwrap();
        let limit = Duration::from_millis(250);
        while matches!(client.health(limit).await, Health::Refused | Health::Silent) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let server = agent.server(options.clone());
        let adopted = place.adopt(identity.clone()).unwrap();
        assert_eq!(server.adopt(adopted, port).await, is_ours);
        assert_eq!(server.identity().is_some(), is_ours);
        if is_ours {
            assert_eq!(agent.the_server(), identity.pid);
            assert!(!server.ensure_running().await.unwrap());
            server.stop().await;
        }
        assert_eq!(agent.processes(), []);
        assert!(place.adopt(identity).is_none(), "it has ended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_sandbox_ten_starts_are_one_and_a_killed_one_is_started_again() {
    let ready = ready().await;
    let home = tempfile::tempdir().unwrap();
    let local = sandboxes(home.path()).await;
    for company in [Company::Alone, Company::Services] {
        let mark = format!("{:?}{}", company, std::process::id());
        let layers = ready.home_layer.iter().cloned();
        let spec = Spec {
            id: format!("live-{}", mark.to_lowercase()),
            limits: Limits::default(),
            layers: layers.map(rollcage_sandbox::Content::HostTree).collect(),
            mounts: ready.mounts(),
            has_entrance: false,
            intercepted_ports: None,
            snapshot: None,
        };
        let sandbox = Arc::new(local.start(spec).await.unwrap());
        for (path, text) in FILES {
            let path = format!("{HOME}/.config/opencode/{path}");
            let text = text.as_bytes().to_vec();
            sandbox.write_file(&path, 0o600, text).await.unwrap();
        }
        let service = Command {
            argv: ["sleep", "86431"].map(str::to_owned).to_vec(),
            env: environment(HOME, &mark),
            ..Command::default()
        };
        let _service = sandbox.spawn(service).await.unwrap();
        let place = SandboxPlace {
            sandbox: Arc::clone(&sandbox),
            company,
        };
        let log = home.path().join("serve.log");
        // A shell that leaves somebody behind in a session of his own, and becomes the server.
        let script = "setsid sleep 86432 > /dev/null 2>&1 < /dev/null & exec \"$0\" \"$@\"";
        let shell = ["/bin/sh", "-c", script].map(str::to_owned).into_iter();
        let program = format!("{BUNDLE_DIR}/bin/opencode");
        let options = ServerOptions {
            argv: shell.chain(serve_command(&program)).collect(),
            env: environment(HOME, &mark),
            cwd: String::new(),
            port: 0,
            credentials: Credentials::generate().unwrap(),
            deadline: Duration::from_secs(60),
            poll: Duration::from_millis(50),
            silence_max: SILENCE_MAX,
            log,
        };
        let server = LiveServer::new(Arc::new(place), options);
        start_ten(&server).await;
        let killed = the_server(&mark);
        kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
        assert_eq!(server.ended().await, "signal 9");
        start_ten(&server).await;
        assert_ne!(the_server(&mark), killed);
        let lines = |text: &str| {
            let all = processes(&mark).into_iter();
            all.filter(|(_, line)| line.contains(text)).count()
        };
        let services = usize::from(company == Company::Services);
        assert_eq!((lines("86431"), lines("86432")), (services, 1));
        server.close().await;
        assert_eq!((lines("86431"), lines("86432")), (services, 0));
        assert_eq!(processes(&mark).len(), services);
        drop(server);
        close_shared(sandbox).await;
    }
    local.shutdown().await.unwrap();
}

/// A server's tasks let go of its sandbox a moment after they are ended.
async fn close_shared(mut sandbox: Arc<Box<dyn Sandbox>>) {
    loop {
        match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => return sandbox.close().await.unwrap(),
            Err(held) => sandbox = held,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
