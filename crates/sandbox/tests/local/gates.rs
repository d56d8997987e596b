//! What programs inside reach of the world, and where they arrive; and what setup commands install.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rollcage_sandbox::{Error, Gates, Sandbox, Spec};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket};

use crate::kit::{Backend, PATIENCE, backend, bash, output, sandbox, spec, start};

async fn gated() -> (Backend, Box<dyn Sandbox>, Gates) {
    let backend = backend().await;
    let spec = Spec {
        intercepted_ports: Some(vec![80, 443]),
        ..spec("gated")
    };
    let mut sandbox = start(&backend, spec).await;
    let gates = sandbox.take_gates().unwrap();
    assert!(sandbox.take_gates().is_none());
    (backend, sandbox, gates)
}

fn listener(listener: std::net::TcpListener) -> TcpListener {
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

/// Connects and says how that went.
fn attempt(family: &str, address: &str, port: u16) -> String {
    format!(
        "python3 -c \"import socket\n\
         try:\n\
         \x20 s = socket.socket(socket.{family}, socket.SOCK_STREAM); s.settimeout(20); s.connect(('{address}', {port}))\n\
         \x20 s.sendall(b'hello'); print('connected')\n\
         except OSError as error: print(error.strerror)\""
    )
}

#[tokio::test]
async fn a_connection_to_any_address_arrives_with_its_destination() {
    let (_backend, sandbox, gates) = gated().await;
    let mut intercepted = gates.intercepted.into_iter().map(listener);
    let (_http, https) = (intercepted.next().unwrap(), intercepted.next().unwrap());
    let script = attempt("AF_INET", "198.51.100.7", 443);
    let (said, accepted) = tokio::join!(output(&*sandbox, &script), https.accept());
    assert_eq!(said, "connected");
    let (mut stream, _) = accepted.unwrap();
    let wanted: SocketAddr = (Ipv4Addr::new(198, 51, 100, 7), 443).into();
    assert_eq!(stream.local_addr().unwrap(), wanted);
    let mut sent = String::new();
    stream.read_to_string(&mut sent).await.unwrap();
    assert_eq!(sent, "hello");
}

#[tokio::test]
async fn everything_else_is_refused_at_once() {
    let (_backend, sandbox, _gates) = gated().await;
    for (family, address, port, said) in [
        ("AF_INET", "198.51.100.7", 8080, "Connection refused"),
        ("AF_INET", "198.51.100.7", 7000, "Connection refused"),
        ("AF_INET", "198.51.100.7", 3128, "Connection refused"),
        ("AF_INET6", "2001:db8::1", 443, "Network is unreachable"),
        ("AF_INET6", "::1", 443, "Connection refused"),
    ] {
        let answer = output(&*sandbox, &attempt(family, address, port)).await;
        assert_eq!(answer, said, "{address}:{port}");
    }
    let datagram = "python3 -c \"import socket\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('198.51.100.7', 53))\n\
        s.send(b'x')\n\
        try: s.recv(9)\n\
        except OSError as error: print(error.strerror)\"";
    assert_eq!(output(&*sandbox, datagram).await, "Connection refused");
    // Raw sockets, and ways to bring another interface or route about, are none of the user's.
    let raw = "python3 -c \"import socket\n\
        for kind in [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 3)]:\n\
        \x20 try: socket.socket(*kind); print('open')\n\
        \x20 except OSError as error: print(error.strerror)\"";
    assert!(!output(&*sandbox, raw).await.contains("open"));
}

#[tokio::test]
async fn names_are_asked_of_whoever_answers_outside() {
    let (_backend, sandbox, gates) = gated().await;
    gates.dns.set_nonblocking(true).unwrap();
    let dns = UdpSocket::from_std(gates.dns).unwrap();
    let answering = async {
        let mut question = [0; 512];
        let received = tokio::time::timeout(PATIENCE, dns.recv_from(&mut question)).await;
        let (count, peer) = received.unwrap().unwrap();
        assert!(question[..count].windows(7).any(|part| part == b"example"));
        // "No such name", with the question's number.
        question[2] = 0x81;
        question[3] = 0x83;
        dns.send_to(&question[..count], peer).await.unwrap();
    };
    let script = "getent ahostsv4 example.org || echo none";
    let (said, ()) = tokio::join!(output(&*sandbox, script), answering);
    assert_eq!(said, "none");
}

#[tokio::test]
async fn without_gates_nothing_is_routed() {
    let (_backend, mut sandbox) = sandbox().await;
    assert!(sandbox.take_gates().is_none());
    let said = output(&*sandbox, &attempt("AF_INET", "198.51.100.7", 443)).await;
    assert_eq!(said, "Network is unreachable");
    let started = std::time::Instant::now();
    assert!(
        !bash(&*sandbox, "getent hosts example.org")
            .await
            .exit
            .success()
    );
    assert!(started.elapsed() < PATIENCE, "refused, not waited for");
}

#[tokio::test]
async fn what_setup_installs_is_read_only_afterwards() {
    let (_backend, sandbox) = sandbox().await;
    let install = "mkdir -p /opt/setup/bin && echo 'echo hello' > /opt/setup/bin/x && chmod +x /opt/setup/bin/x";
    assert!(bash(&*sandbox, install).await.exit.success());
    sandbox.seal_setup().await.unwrap();
    assert_eq!(output(&*sandbox, "/opt/setup/bin/x").await, "hello");
    for change in [
        "touch /opt/setup/y",
        "rm /opt/setup/bin/x",
        "echo > /opt/setup/bin/x",
        "chmod 777 /opt/setup/bin",
        "mv /opt/setup /opt/other",
        "rm -rf /opt/setup && mkdir /opt/setup",
        "mount -o remount,rw /opt/setup",
    ] {
        assert!(!bash(&*sandbox, change).await.exit.success(), "{change}");
    }
    assert_eq!(output(&*sandbox, "/opt/setup/bin/x").await, "hello");
}

#[tokio::test]
async fn sealing_fails_while_somebody_writes() {
    let (_backend, sandbox) = sandbox().await;
    let mut writer = sandbox
        .spawn(crate::kit::command(&[
            "bash",
            "-c",
            "exec 5> /opt/setup/log; echo ready; exec sleep 100",
        ]))
        .await
        .unwrap();
    let mut ready = [0; 6];
    let stdout = writer.stdout.as_mut().unwrap();
    tokio::time::timeout(Duration::from_secs(30), stdout.read_exact(&mut ready))
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(
        sandbox.seal_setup().await,
        Err(Error::Engine { .. })
    ));
    sandbox.kill_all().await.unwrap();
    sandbox.seal_setup().await.unwrap();
}

#[tokio::test]
async fn python_is_there_where_python3_is() {
    let (_backend, sandbox) = sandbox().await;
    let script = "PATH=$PATH:/opt/rollcage/bin; python3 --version > a && python --version > b && cmp a b && echo same";
    assert_eq!(output(&*sandbox, script).await, "same");
    assert!(
        !bash(&*sandbox, "rm /opt/rollcage/bin/python")
            .await
            .exit
            .success()
    );
}
