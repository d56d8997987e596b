//! Helpers of all tests here.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rollcage_sandbox::local::{Local, Options};
use rollcage_sandbox::{
    Command, CommandOutcome, Error, OutputLimit, Sandbox, Sandboxes, Spec, User, run,
};

/// Longer than any operation here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The rootless run gets the path of its copy of the program in a variable.
pub(crate) fn zygote() -> PathBuf {
    std::env::var_os("ROLLCAGE_TEST_ZYGOTE").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_rollcage-test-zygote")),
        PathBuf::from,
    )
}

/// A directory in which other users can run this suite: as `suite`, with the zygote beside it.
pub(crate) fn place_for_others() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), path("suite")).unwrap();
    std::fs::copy(zygote(), path("zygote")).unwrap();
    std::fs::create_dir(path("tmp")).unwrap();
    std::fs::set_permissions(path("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    place
}

pub(crate) struct Backend {
    pub(crate) local: Local,
    pub(crate) state: tempfile::TempDir,
}

impl Deref for Backend {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.local
    }
}

pub(crate) fn options(state_dir: PathBuf, args: Vec<String>) -> Options {
    Options {
        program: zygote(),
        args,
        state_dir,
    }
}

pub(crate) async fn backend() -> Backend {
    let state = tempfile::tempdir().unwrap();
    let local = Local::open(options(state.path().join("state"), Vec::new()))
        .await
        .unwrap();
    Backend { local, state }
}

pub(crate) fn spec(id: &str) -> Spec {
    Spec {
        id: id.to_owned(),
        ..Spec::default()
    }
}

/// Starts a sandbox, or panics with the reason why this machine cannot.
pub(crate) async fn start(backend: &Local, spec: Spec) -> Box<dyn Sandbox> {
    backend
        .start(spec)
        .await
        .unwrap_or_else(|error| panic!("{}", chain(&error)))
}

pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(crate) async fn sandbox() -> (Backend, Box<dyn Sandbox>) {
    let backend = backend().await;
    let sandbox = start(&backend, spec("test")).await;
    (backend, sandbox)
}

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: BTreeMap::from(
            [("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        ..Command::default()
    }
}

pub(crate) async fn finish(sandbox: &dyn Sandbox, command: Command) -> CommandOutcome {
    run(sandbox, command, PATIENCE, OutputLimit::default())
        .await
        .unwrap_or_else(|error| panic!("{}", chain(&error)))
}

pub(crate) async fn bash(sandbox: &dyn Sandbox, script: &str) -> CommandOutcome {
    finish(sandbox, command(&["bash", "-c", script])).await
}

pub(crate) async fn root_bash(sandbox: &dyn Sandbox, script: &str) -> CommandOutcome {
    finish(
        sandbox,
        Command {
            user: User::Root,
            ..command(&["bash", "-c", script])
        },
    )
    .await
}

/// The output of a script, trimmed.
pub(crate) async fn output(sandbox: &dyn Sandbox, script: &str) -> String {
    text(&bash(sandbox, script).await.stdout)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// The number of the user's processes inside, without the one that counts.
pub(crate) async fn others(sandbox: &dyn Sandbox) -> usize {
    let entries = sandbox.list("/proc", 1, 10_000).await.unwrap();
    entries
        .iter()
        .filter(|entry| entry.path.parse::<u32>().is_ok())
        .count()
        - 1
}
