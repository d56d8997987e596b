use super::*;

#[tokio::test]
async fn names_are_known_by_rule_and_asked_of_nobody() {
    let cage = Cage::new("pypi.org,*.example.org");
    let first = cage.ask("pypi.org").await.unwrap();
    assert_eq!(first.octets()[..2], [198, 18]);
    assert_eq!(cage.ask("PyPI.org").await, Ok(first));
    assert_ne!(cage.ask("a.example.org").await.unwrap(), first);
    for name in [
        "example.org",
        "evil.example",
        "pypi.org.evil.example",
        "localhost",
        "c2VjcmV0.pypi.org",
    ] {
        assert_eq!(cage.ask(name).await, Err(3), "{name}");
    }
    assert!(cage.world.looked_up.lock().unwrap().is_empty());
    let refusals = cage.refusals();
    assert_eq!(refusals.len(), 5);
    assert_eq!(
        refusals[4],
        "dns c2VjcmV0.pypi.org:0: the host is not listed".to_lowercase()
    );
}

#[tokio::test]
async fn nothing_leaves_in_names_even_when_all_are_known() {
    let cage = Cage::new("open");
    for number in 0..20 {
        let name = format!("secret{number}.evil.example");
        assert!(cage.ask(&name).await.is_ok());
    }
    // An address of IPv6, a text, a service: there are none.
    for kind in [28, 16, 65] {
        let packet = [
            &b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0"[..],
            &[kind, 0, 1],
        ]
        .concat();
        let answer = cage.send_question(&packet).await;
        assert_eq!((answer[3] & 15, answer[7]), (0, 0));
    }
    assert!(cage.world.looked_up.lock().unwrap().is_empty());
    assert!(cage.connected().is_empty());
}

#[tokio::test]
async fn malformed_questions_are_told_so_and_do_no_harm() {
    let cage = Cage::new("open");
    let header = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0";
    let circle = [&header[..], b"\xc0\x0c\0\x01\0\x01"].concat();
    assert_eq!(cage.send_question(&circle).await[3] & 15, 1);
    let mut huge = [&header[..], b"\x01a\0\0\x01\0\x01"].concat();
    huge.resize(65_000, 7);
    assert_eq!(cage.send_question(&huge).await[3] & 15, 1);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for noise in [&b""[..], b"x", &[0xff; 12]] {
        socket.send_to(noise, cage.dns).await.unwrap();
    }
    assert!(cage.ask("a.test").await.is_ok());
}

#[tokio::test]
async fn without_a_phase_there_is_nothing() {
    let cage = Cage::new("none");
    assert_eq!(cage.ask("pypi.org").await, Err(3));
    assert_reset(cage.connect("93.184.216.34:443").await, b"").await;
    let answer = cage
        .ask_proxy("CONNECT pypi.org:443 HTTP/1.1\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("--network agent=pypi.org"), "{answer}");
    let fresh = Filter::new(Options::default());
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = bind();
    let address = proxy.local_addr().unwrap();
    let dns = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let gates = Gates {
        proxy,
        transparent: vec![],
        dns,
    };
    fresh.serve(gates).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let answer = talk(
        stream,
        b"GET http://a.test/ HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.contains("no network"), "{answer}");
    fresh.close().await;
}

#[tokio::test]
async fn addresses_are_refused_unless_they_are_listed() {
    let cage = Cage::new("pypi.org,10.1.0.0/16,192.168.7.7:5432");
    for address in [
        "93.184.216.34:443",
        "8.8.8.8:443",
        "127.0.0.1:80",
        "169.254.169.254:80",
        "10.2.0.1:443",
        "10.1.0.1:22",
        "192.168.7.7:443",
        "[2606:4700::1]:443",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
        "198.18.77.77:443",
    ] {
        assert_reset(cage.connect(address).await, b"").await;
    }
    assert!(cage.connected().is_empty());
    assert_eq!(cage.refusals().len(), 11);
    cage.server("192.168.7.7:5432".parse().unwrap(), echo).await;
    let mut stream = cage.connect("192.168.7.7:5432").await;
    assert_echo(&mut stream, b"\0\0\0\x08query").await;
}

#[tokio::test]
async fn a_name_is_looked_up_and_checked_whenever_something_connects_to_it() {
    let cage = Cage::new("*.example.org:9418,git.corp:9418");
    cage.server(SocketAddr::new(PUBLIC, 9418), echo).await;
    let public = PUBLIC.to_string();
    cage.leads("a.example.org", &[&[&public], &["127.0.0.1"]]);
    let mut stream = cage.connect_to("a.example.org", 9418).await;
    assert_echo(&mut stream, b"\0first").await;
    assert_reset(cage.connect_to("a.example.org", 9418).await, b"\0second").await;
    for bad in [
        "10.0.0.1",
        "::1",
        "169.254.169.254",
        "198.18.0.1",
        "0.0.0.0",
        "::ffff:127.0.0.1",
    ] {
        // One among several is enough.
        cage.leads("b.example.org", &[&[&public, bad]]);
        assert_reset(cage.connect_to("b.example.org", 9418).await, b"\0x").await;
    }
    assert_eq!(cage.connected(), ["93.184.216.34:9418"]);
    // Who is listed exactly may be private, never the machine itself or its cloud.
    cage.server("10.0.0.9:9418".parse().unwrap(), echo).await;
    cage.leads(
        "git.corp",
        &[&["10.0.0.9"], &["127.0.0.1"], &["169.254.169.254"]],
    );
    let mut stream = cage.connect_to("git.corp", 9418).await;
    assert_echo(&mut stream, b"\0mirror").await;
    assert_reset(cage.connect_to("git.corp", 9418).await, b"\0x").await;
    assert_reset(cage.connect_to("git.corp", 9418).await, b"\0x").await;
    let last = cage.refusals().pop().unwrap();
    assert_eq!(
        last,
        "raw git.corp:9418: the name leads to a metadata address"
    );
}

#[tokio::test]
async fn every_port_needs_its_rule() {
    let cage = Cage::new("pypi.org,db.example:5432,@git");
    for (name, port) in [
        ("pypi.org", 22),
        ("pypi.org", 25),
        ("pypi.org", 8443),
        ("db.example", 443),
    ] {
        assert_reset(cage.connect_to(name, port).await, b"").await;
    }
    cage.host("git.example", 22, echo).await;
    let mut ssh = cage.connect_to("git.example", 22).await;
    assert_echo(&mut ssh, b"SSH-2.0-OpenSSH_9.6\r\n").await;
}

#[tokio::test]
async fn a_server_may_be_the_one_that_begins() {
    let limits = Limits {
        glance: Duration::from_millis(10),
        ..Limits::default()
    };
    let cage = Cage::with("db.example:5432", limits, |_| {});
    cage.host("db.example", 5432, |mut stream| async move {
        // The server is the one that begins.
        let _ = stream.write_all(b"hello").await;
        echo(stream).await;
    })
    .await;
    let mut stream = cage.connect_to("db.example", 5432).await;
    let mut greeting = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut greeting))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&greeting, b"hello");
    assert_echo(&mut stream, b"GET / HTTP/1.1\r\n\r\n").await;
}

#[tokio::test]
async fn a_listed_name_that_leads_to_this_machine_is_refused() {
    // The address that the kernel would send from; nothing is sent.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let routed = socket.connect("192.0.2.1:9");
    let own = routed.and_then(|()| socket.local_addr()).map(|it| it.ip());
    let Ok(own) = own else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let lists = [
        ("git.corp:9418".to_owned(), false),
        (format!("git.corp:9418,{own}/24:9418"), false),
        (format!("git.corp:9418,{own}:5432"), false),
        (format!("git.corp:9418,{own}:9418"), true),
    ];
    for (policy, is_reached) in lists {
        let cage = Cage::new(&policy);
        cage.server(SocketAddr::new(own, 9418), echo).await;
        cage.leads("git.corp", &[&[&own.to_string()]]);
        let mut stream = cage.connect_to("git.corp", 9418).await;
        if is_reached {
            assert_echo(&mut stream, b"\0mirror").await;
            continue;
        }
        assert_reset(stream, b"\0mirror").await;
        let refusals = cage.refusals();
        let expect = format!(
            "raw git.corp:9418: {own} is this machine itself, and that address is not listed"
        );
        assert_eq!(refusals, [expect], "{policy}");
        assert!(cage.connected().is_empty(), "{policy}");
    }
    // Never, whatever is listed.
    for address in [
        "127.0.0.1",
        "127.8.8.8",
        "169.254.1.1",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
    ] {
        let cage = Cage::new("git.corp:9418,127.0.0.1:9418,0.0.0.0/0:9418");
        cage.leads("git.corp", &[&[address]]);
        assert_reset(cage.connect_to("git.corp", 9418).await, b"\0x").await;
        assert!(cage.connected().is_empty(), "{address}");
    }
}
