//! A hand-written registry on loopback that can misbehave, and the package it serves.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha1::Sha1;
use sha2::{Digest as _, Sha512};

use super::super::{Bundles, Npm, Origin, Registry, Source, Target};

/// An agent that exists on the fake registry only.
pub(super) static FAKE: LazyLock<Source> = LazyLock::new(|| fake("fake-linux"));

/// The same agent from another package.
pub(super) fn fake(package: &str) -> Source {
    let targets = [
        Target::X64,
        Target::X64_BASELINE,
        Target::X64_MUSL,
        Target::X64_BASELINE_MUSL,
        Target::ARM64,
        Target::ARM64_MUSL,
    ];
    let platforms = targets.map(|target| (target.to_string(), package.to_owned()));
    Source {
        agent: "fake".to_owned(),
        default_version: "1.0.0".to_owned(),
        origin: Origin::Npm(Npm {
            package: "fake-ai".to_owned(),
            platforms: platforms.into(),
            program: "bin/fake".to_owned(),
            node: None,
            lock: None,
        }),
        list: None,
    }
}

pub(super) struct Request {
    pub(super) path: String,
    headers: Vec<String>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter().filter_map(|line| line.split_once(": "));
        headers.find_map(|(own, value)| own.eq_ignore_ascii_case(name).then_some(value))
    }
}

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Hang up or stall after this many bytes of the body.
    pub(super) cut: Option<(usize, Cut)>,
}

#[derive(Clone, Copy)]
pub(super) enum Cut {
    HangUp,
    Stall,
}

impl Reply {
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            cut: None,
        }
    }

    pub(super) fn status(status: u16) -> Self {
        Self {
            status,
            body: Vec::new(),
            cut: None,
        }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server that answers with `handler` until the process ends, and records the requested paths.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(super) fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (handler.clone(), log.clone());
                std::thread::spawn(move || serve(stream, &*handler, &log));
            }
        });
        Self { url, asked }
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// How often a path with this suffix was requested.
    pub(super) fn count(&self, ending: &str) -> usize {
        let asked = self.asked();
        asked.iter().filter(|path| path.ends_with(ending)).count()
    }

    /// A registry with short timeouts.
    pub(super) fn registry(&self) -> Registry {
        impatient(Registry::at(&self.url))
    }
}

pub(super) fn impatient(mut registry: Registry) -> Registry {
    registry.limits.backoff = Duration::from_millis(5);
    registry.limits.stall = Duration::from_secs(5);
    registry.limits.total = Duration::from_secs(30);
    registry
}

fn serve(stream: TcpStream, handler: &Handler, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    let headers = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty());
    let request = Request {
        path: first.split(' ').nth(1).unwrap().to_owned(),
        headers: headers.collect(),
    };
    log.lock().unwrap().push(request.path.clone());
    let reply = handler(&request);
    let mut stream = stream;
    // pip takes nothing else for a list of files.
    let kind = match request.path.ends_with('/') {
        true => "content-type: text/html\r\n",
        false => "",
    };
    let head = format!(
        "HTTP/1.1 {} X\r\n{kind}content-length: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        reply.body.len()
    );
    // The client may have hung up on purpose.
    let _ = stream.write_all(head.as_bytes());
    let (bytes, cut) = reply.cut.unwrap_or((reply.body.len(), Cut::HangUp));
    let _ = stream.write_all(&reply.body[..bytes]);
    if let Cut::Stall = cut {
        let _ = stream.read(&mut [0]);
    }
}

/// A package with one version, and the paths a registry has for it.
#[derive(Clone)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) tarball: Vec<u8>,
    pub(super) integrity: serde_json::Value,
}

impl Package {
    pub(super) fn new() -> Self {
        Self::with_program(&elf(64))
    }

    pub(super) fn with_program(program: &[u8]) -> Self {
        let tarball = tarball(program);
        let digest = STANDARD.encode(Sha512::digest(&tarball));
        let integrity = serde_json::json!({ "integrity": format!("sha512-{digest}") });
        Self {
            name: "fake-linux",
            tarball,
            integrity,
        }
    }

    pub(super) fn with_old_sum(mut self) -> Self {
        let digest = Sha1::digest(&self.tarball);
        let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.integrity = serde_json::json!({ "shasum": sum });
        self
    }

    /// The correct response to `request`, with tarballs located at `base`.
    pub(super) fn answer(&self, request: &Request, base: &str) -> Reply {
        let mut dist = self.integrity.clone();
        dist["tarball"] = format!("{base}/{0}/-/{0}-1.0.0.tgz", self.name).into();
        let version = serde_json::json!({ "name": self.name, "version": "1.0.0", "dist": dist });
        let versions = serde_json::json!({
            "dist-tags": { "latest": "1.0.0", "next": "2.0.0" },
            "versions": { "1.0.0": version, "0.9.0": version, "0.10.0": version },
        });
        let path = request.path.as_str();
        let encoded = self.name.replace('/', "%2f");
        let path = path.strip_prefix("http://registry.invalid").unwrap_or(path);
        if path.ends_with("-1.0.0.tgz") {
            Reply::ok(self.tarball.clone())
        } else if path.ends_with(&format!("{encoded}/1.0.0")) || path.ends_with("/fake-ai/latest") {
            Reply::ok(version.to_string())
        } else if path.ends_with(&encoded) || path.ends_with("/fake-ai") {
            Reply::ok(versions.to_string())
        } else {
            Reply::status(404)
        }
    }

    /// A server that always answers correctly.
    pub(super) fn serve(self) -> Server {
        self.serve_with(|_| None)
    }

    /// A server that answers correctly, except where `special` answers.
    pub(super) fn serve_with(
        self,
        special: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Server {
        Server::start(move |request| {
            let base = format!("http://{}", request.header("host").unwrap_or_default());
            special(request).unwrap_or_else(|| self.answer(request, &base))
        })
    }
}

/// An ELF header for this machine, padded with incompressible noise.
pub(super) fn elf(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    let mut program: Vec<u8> = noise.take(bytes).collect();
    program[..4].copy_from_slice(b"\x7fELF");
    program[18..20].copy_from_slice(&Target::of_host().elf_machine().to_le_bytes());
    program
}

fn tarball(program: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let files: [(&str, u32, &[u8]); 2] = [
        ("package/package.json", 0o644, b"{}"),
        ("package/bin/fake", 0o755, program),
    ];
    for (path, mode, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, path, data).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// A bundle root of its own.
pub(super) fn bundles(registry: Registry) -> (tempfile::TempDir, Bundles) {
    let directory = tempfile::tempdir().unwrap();
    let bundles = Bundles::new(directory.path().join("bundles"), registry);
    (directory, bundles)
}

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(super) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(super) fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        let limit = Duration::from_secs(20);
        let waited = self.0.1.wait_timeout_while(open, limit, |open| !*open);
        assert!(!waited.unwrap().1.timed_out(), "the gate was never opened");
    }
}
