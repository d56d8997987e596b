//! Ways out of a sandbox whose network is an allow-list, tried inside a real one. Outside stands a world of the test's own,
//! in which every name has an address and every address answers: what gets through is seen there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use rollcage_egress::{Filter, Gates, Limits, Options, Outside, World};
use rollcage_model::network::{Network, Origin, Phase, Presets};
use rollcage_sandbox::local::Local;
use rollcage_sandbox::{Command, OutputLimit, Sandbox, Sandboxes, Spec, run};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const WAYS: &str = include_str!("egress/ways.py");
/// Slow machines are slow; what is dropped in silence takes the script's patience, which is fifteen seconds.
const AT_ONCE_S: f64 = 10.0;

/// Where connections that were let through end.
#[derive(Debug)]
struct TestWorld {
    server: SocketAddr,
    look_ups: AtomicUsize,
    connected: Mutex<BTreeSet<IpAddr>>,
}

impl World for TestWorld {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let count = self.look_ups.fetch_add(1, Ordering::SeqCst);
        let public = Ipv4Addr::new(93, 184, 216, 34);
        let address = match host {
            "loopback.sub.example" => Ipv4Addr::LOCALHOST,
            "private.sub.example" => Ipv4Addr::new(10, 0, 0, 1),
            "metadata.sub.example" => Ipv4Addr::new(169, 254, 169, 254),
            "changing.sub.example" if count % 2 == 1 => Ipv4Addr::LOCALHOST,
            _ => public,
        };
        Box::pin(async move { Ok(vec![address.into()]) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        self.connected.lock().unwrap().insert(address.ip());
        Box::pin(TcpStream::connect(self.server))
    }
}

/// Answers each request with its path and host, and a TLS greeting with what shows that it came through.
async fn serve(listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let mut head = Vec::new();
            loop {
                if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                    return;
                }
                let text = String::from_utf8_lossy(&head).into_owned();
                if !text.contains("HTTP/1.1") {
                    let _ = stream.write_all(b"PASSED").await;
                    return;
                }
                while let Some(end) = head.windows(4).position(|part| part == b"\r\n\r\n") {
                    let request: Vec<u8> = head.drain(..end + 4).collect();
                    let answer = answer(&String::from_utf8_lossy(&request));
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
    }
}

fn answer(request: &str) -> String {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut headers = request.lines().filter_map(|line| line.split_once(": "));
    let host = headers.find(|(name, _)| name.eq_ignore_ascii_case("host"));
    if path == "/redirect" {
        return "HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
            .to_owned();
    }
    let body = format!("PASSED {path} {}", host.map_or("", |(_, host)| host));
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct Lab {
    sandbox: Box<dyn Sandbox>,
    filter: Filter,
    world: Arc<TestWorld>,
    _server: JoinSet<()>,
    _state: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Lab {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let world = Arc::new(TestWorld {
            server: listener.local_addr().unwrap(),
            look_ups: AtomicUsize::new(0),
            connected: Mutex::default(),
        });
        let mut server = JoinSet::new();
        server.spawn(serve(listener));
        let state = tempfile::tempdir().unwrap();
        let sandboxes = Local::open(rollcage_sandbox::local::Options {
            program: env!("CARGO_BIN_EXE_rollcage").into(),
            args: vec!["__zygote".to_owned()],
            state_dir: state.path().join("sandboxes"),
        });
        let spec = Spec {
            id: "egress".to_owned(),
            intercepted_ports: Some(vec![22, 80, 443]),
            ..Spec::default()
        };
        let mut sandbox = sandboxes.await.unwrap().start(spec).await.unwrap();
        let gates = sandbox.take_gates().unwrap();
        let filter = Filter::new(Options {
            outside: Outside {
                world: Arc::clone(&world) as Arc<dyn World>,
                ..Outside::default()
            },
            limits: Limits::default(),
        });
        let gates = Gates {
            proxy: gates.proxy,
            transparent: gates.intercepted,
            dns: gates.dns,
        };
        filter.serve(gates).unwrap();
        Lab {
            sandbox,
            filter,
            world,
            _server: server,
            _state: state,
        }
    }

    fn enter(&self, network: &str) {
        let network: Network = serde_json::from_str(network).unwrap();
        let rules = network.rules(Phase::Agent, Origin::Operator, &[], &Presets::new());
        self.filter.enter("agent", rules.unwrap());
    }

    async fn python(&self, script: &str, arguments: &[&str]) -> String {
        let mut argv = vec!["python3", "-c", script];
        argv.extend(arguments);
        let command = Command {
            argv: argv.into_iter().map(str::to_owned).collect(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ..Command::default()
        };
        let limit = OutputLimit { bytes_max: 1 << 20 };
        let patience = Duration::from_secs(300);
        let done = run(&*self.sandbox, command, patience, limit).await.unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.exit.success(), "{stderr}");
        String::from_utf8(done.stdout).unwrap()
    }

    async fn ways(&self, abstract_name: &str, port: u16) -> BTreeMap<String, Way> {
        let said = self.python(WAYS, &[abstract_name, &port.to_string()]).await;
        serde_json::from_str(&said).unwrap()
    }
}

#[derive(Debug, Deserialize)]
struct Way {
    came: String,
    seconds: f64,
}

const LISTED: &str = r#"{"agent": ["good.example", "*.sub.example", "ssh.example:22"]}"#;

/// Ways that pass where nothing is filtered by name, so that the test above shows walls and not mistakes in the script.
/// Those that say one name and mean another are refused in any case; their counterpart is what is listed.
const OPEN_PASSES: [&str; 12] = [
    "name_not_listed_by_connect",
    "name_not_listed_by_proxy",
    "name_not_listed_by_dns",
    "dns_tunnel_by_name",
    "address_by_connect",
    "address_in_the_clear",
    "ssh_of_a_host_listed_without_it",
    "redirect",
    "name_in_capitals_with_a_dot",
    "name_that_ends_alike",
    "name_that_begins_alike",
    "suffix_itself",
];

#[tokio::test]
async fn every_way_out_is_refused_at_once() {
    let lab = Lab::new().await;
    lab.enter(LISTED);
    // Of this machine, not of the sandbox.
    let name = format!("rollcage-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let ways = lab.ways(&name, lab.world.server.port()).await;
    assert!(ways.len() >= 50, "{}", ways.len());
    for (name, way) in &ways {
        assert!(!way.came.contains("PASSED"), "{name}: {}", way.came);
        assert!(
            way.seconds < AT_ONCE_S,
            "{name} took {}: {}",
            way.seconds,
            way.came
        );
    }
    let connected = lab.world.connected.lock().unwrap().clone();
    let public: BTreeSet<IpAddr> = BTreeSet::from([Ipv4Addr::new(93, 184, 216, 34).into()]);
    assert_eq!(connected, public, "only what is listed was connected to");
    lab.filter.close().await;
}

#[tokio::test]
async fn what_is_listed_is_reached_with_and_without_a_proxy() {
    let lab = Lab::new().await;
    lab.enter(LISTED);
    let script = format!(
        "{}\nprint(to('good.example', 80, get('good.example')))\n\
         print(through_proxy(get('good.example').replace('/', 'http://good.example/', 1)))\n\
         print(to('good.example', 443, hello('good.example')))\n\
         print(connected('a.sub.example:443'))\n\
         print(to('ssh.example', 22, 'SSH-2.0-x\\r\\n'))\n",
        WAYS.split("GOOD =").next().unwrap()
    );
    let said = lab.python(&script, &[]).await;
    assert_eq!(said.matches("PASSED").count(), 5, "{said}");
    let audit = lab.filter.audit();
    let totals = audit.totals["agent"];
    assert_eq!(totals.refused, 0, "{audit:?}");
    assert!(totals.bytes_in > 0 && totals.bytes_out > 0, "{audit:?}");
    lab.filter.close().await;
}

#[tokio::test]
async fn a_name_that_changes_leads_only_to_what_was_checked() {
    let lab = Lab::new().await;
    lab.enter(LISTED);
    let script = format!(
        "{}\nfor _ in range(6): print(connected('changing.sub.example:443')[:20])\n",
        WAYS.split("GOOD =").next().unwrap()
    );
    lab.python(&script, &[]).await;
    let connected = lab.world.connected.lock().unwrap().clone();
    assert!(
        !connected.contains(&Ipv4Addr::LOCALHOST.into()),
        "{connected:?}"
    );
    assert!(!connected.is_empty());
    lab.filter.close().await;
}

#[tokio::test]
async fn a_connection_of_one_phase_is_cut_when_the_next_begins() {
    let lab = Lab::new().await;
    lab.enter(LISTED);
    let script = format!(
        "{}\nimport threading\n\
         stream = connect((look_up('good.example'), 80))\n\
         print('open', flush=True)\n\
         print(read(stream).decode())\n",
        WAYS.split("GOOD =").next().unwrap()
    );
    let cutting = async {
        while lab.filter.audit().totals.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        lab.filter.enter("verify", Default::default());
    };
    let (said, ()) = tokio::join!(lab.python(&script, &[]), cutting);
    assert!(said.contains("reset"), "{said}");
    lab.filter.close().await;
}

#[tokio::test]
async fn the_same_ways_pass_where_no_wall_stands() {
    let lab = Lab::new().await;
    lab.enter(r#"{"agent": "open"}"#);
    let ways = lab.ways("nobody", 1).await;
    for name in OPEN_PASSES {
        let way = &ways[name];
        assert!(way.came.contains("PASSED"), "{name}: {}", way.came);
    }
    lab.filter.close().await;
}
