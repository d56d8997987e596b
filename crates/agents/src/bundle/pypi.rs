//! Agents from PyPI: installed into a directory of their own with the pip of a Python that sandboxes have too. pip uses
//! the user's settings (environment and configuration files).

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{ChildStderr, ChildStdout, Command};

use super::error::{PYTHONS, PypiError};
use super::install::{self, InstallRequest};
use super::list::PinnedList;
use super::progress::{InstallPhase, ProgressReporter};
use super::registry::Registry;
use super::source::{Pypi, Source};
use super::storage::{self, StorageError};
use super::{Bundle, BundleManifest, FORMAT, InstallError};

const PACKAGES: &str = "site-packages";
const LAUNCHER: &str = "main.py";
/// The most that is kept of pip's standard error, for an error message.
const STDERR_BYTES_MAX: usize = 64 << 10;

/// Runs pip to fill a directory, adds a launcher, and moves it into place.
pub(super) async fn install(
    registry: &Registry,
    pypi: &Pypi,
    request: InstallRequest<'_>,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Bundle, InstallError> {
    let spec = &request.spec;
    let agent = &spec.source.agent;
    let python = find_python(agent).await?;
    let staging = install::new_staging(request.root).await?;
    let tree = staging.path().join("tree");
    let requirements = staging.path().join("requirements.txt");
    let storage = |error| StorageError::new("write", staging.path(), error);
    std::fs::create_dir(&tree).map_err(storage)?;
    let pinned = PinnedList::of(spec.source, &spec.version)?;
    let lines = match &pinned {
        Some(pinned) => pinned.requirements(),
        None => loose_requirements(pypi, &spec.version),
    };
    std::fs::write(&requirements, lines.join("\n") + "\n").map_err(storage)?;

    let mut pip = pip_install(registry, &python, &requirements);
    pip.args(pinned.is_some().then_some("--no-deps"))
        .arg("--target")
        .arg(tree.join(PACKAGES));
    run_pip(pip, (&python, &pypi.package), reporter).await?;

    reporter.phase(InstallPhase::Unpacking, None);
    let (agent, version) = (agent.clone(), spec.version.clone());
    let (package, entry) = (pypi.package.clone(), pypi.entry.clone());
    let directory = request.directory;
    let lock = request.lock;
    install::run_blocking(move || {
        let _lock = lock;
        let packages = tree.join(PACKAGES);
        let (components, integrity) = inventory(&packages)?;
        write_launcher(&tree, &entry)?;
        let bytes = make_readable(&tree)?;
        let manifest = BundleManifest {
            format: FORMAT,
            agent,
            version,
            package,
            integrity,
            installed_at: jiff::Timestamp::now().to_string(),
            bytes,
            program: LAUNCHER.to_owned(),
            components,
            interpreter: Some(python),
        };
        storage::sync(&tree)?;
        install::write_manifest(&tree, &manifest)?;
        install::place(&staging, &tree, &directory)?;
        Ok(manifest.bundle(&directory))
    })
    .await?
}

/// Resolves what pip would install, as names and versions, without installing anything.
pub(super) async fn resolve(
    registry: &Registry,
    (source, pypi): (&Source, &Pypi),
    version: &str,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Vec<(String, String)>, InstallError> {
    let dry_run = DryRun {
        agent: &source.agent,
        package: &pypi.package,
        requirements: loose_requirements(pypi, version),
        has_dependencies: true,
    };
    dry_run.choose(registry, reporter).await
}

/// The newest version of a package that pip would install.
pub(super) async fn newest(
    registry: &Registry,
    agent: &str,
    package: &str,
    reporter: &mut ProgressReporter<'_>,
) -> Result<String, InstallError> {
    let dry_run = DryRun {
        agent,
        package,
        requirements: vec![package.to_owned()],
        has_dependencies: false,
    };
    let chosen = dry_run.choose(registry, reporter).await?;
    let newest = chosen.into_iter().next().map(|(_, version)| version);
    newest.ok_or_else(|| InstallError::NoPackage {
        package: package.to_owned(),
    })
}

/// What pip would install for some requirements.
struct DryRun<'a> {
    agent: &'a str,
    package: &'a str,
    requirements: Vec<String>,
    has_dependencies: bool,
}

impl DryRun<'_> {
    async fn choose(
        self,
        registry: &Registry,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<Vec<(String, String)>, InstallError> {
        let python = find_python(self.agent).await?;
        let directory = tempfile::tempdir()
            .map_err(|error| StorageError::new("create in", &std::env::temp_dir(), error))?;
        let storage = |error| StorageError::new("use", directory.path(), error);
        let requirements = directory.path().join("requirements.txt");
        let lines = self.requirements;
        std::fs::write(&requirements, lines.join("\n") + "\n").map_err(storage)?;
        let report = directory.path().join("report.json");
        let mut pip = pip_install(registry, &python, &requirements);
        pip.args(["--dry-run", "--ignore-installed"])
            .args((!self.has_dependencies).then_some("--no-deps"))
            .arg("--report")
            .arg(&report);
        run_pip(pip, (&python, self.package), reporter).await?;
        let report = std::fs::read(&report).map_err(storage)?;
        let report: Report = serde_json::from_slice(&report)
            .map_err(|source| PypiError::Report { python, source })?;
        let chosen = report.install.into_iter().map(|item| item.metadata);
        Ok(chosen.map(|chosen| (chosen.name, chosen.version)).collect())
    }
}

/// pip's report of a dry run.
#[derive(Deserialize)]
struct Report {
    install: Vec<ReportItem>,
}

#[derive(Deserialize)]
struct ReportItem {
    metadata: ReportMetadata,
}

#[derive(Deserialize)]
struct ReportMetadata {
    name: String,
    version: String,
}

/// One version of the agent, with its dependencies left to pip.
fn loose_requirements(pypi: &Pypi, version: &str) -> Vec<String> {
    let own = format!("{}=={version}", pypi.package);
    [vec![own], pypi.with.clone()].concat()
}

fn pip_install(registry: &Registry, python: &Path, requirements: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-I", "-m", "pip", "install", "--no-input"])
        .args(["--disable-pip-version-check", "--no-warn-script-location"])
        .args(["--progress-bar", "off", "--only-binary", ":all:"])
        .arg("--requirement")
        .arg(requirements)
        // These would contradict --target.
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .env_remove("PIP_PREFIX")
        .env_remove("PIP_TARGET");
    if let Some(index) = &registry.python_index {
        pip.env("PIP_INDEX_URL", index.reveal());
    }
    pip
}

/// The first Python that sandboxes have, by its versioned path (`python3.11`): installed packages work with one minor
/// version only.
async fn find_python(agent: &str) -> Result<PathBuf, InstallError> {
    let found = PYTHONS
        .iter()
        .find_map(|path| std::fs::canonicalize(path).ok());
    let found = found.filter(|path| path.starts_with("/usr"));
    let Some(python) = found else {
        let agent = agent.to_owned();
        return Err(PypiError::NoPython { agent }.into());
    };
    let mut command = Command::new(&python);
    command
        .args(["-I", "-c", "import pip"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    match command.status().await {
        Ok(status) if status.success() => Ok(python),
        Ok(_) => {
            let agent = agent.to_owned();
            Err(PypiError::NoPip { agent, python }.into())
        }
        Err(source) => Err(PypiError::Run { python, source }.into()),
    }
}

async fn run_pip(
    mut pip: Command,
    (python, package): (&Path, &str),
    reporter: &mut ProgressReporter<'_>,
) -> Result<(), InstallError> {
    pip.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let failed = |source| PypiError::Run {
        python: python.to_owned(),
        source,
    };
    let mut child = pip.spawn().map_err(failed)?;
    reporter.phase(InstallPhase::Downloading, None);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ((), said) = tokio::join!(report_downloads(stdout, reporter), read_stderr(stderr));
    let status = child.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    // pip masks credentials in URLs itself; its `ERROR` lines give the reason.
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("ERROR"))
        .collect();
    let said = if lines.is_empty() {
        said.trim().to_owned()
    } else {
        lines.join(" ")
    };
    let package = package.to_owned();
    Err(PypiError::Failed { package, said }.into())
}

/// Reports download progress from pip's output.
async fn report_downloads(stdout: Option<ChildStdout>, reporter: &mut ProgressReporter<'_>) {
    let Some(stdout) = stdout else {
        return;
    };
    let mut lines = BufReader::new(stdout).lines();
    let mut bytes = 0;
    while let Ok(Some(line)) = lines.next_line().await {
        bytes += downloaded_bytes(&line).unwrap_or(0);
        reporter.bytes(bytes);
    }
}

async fn read_stderr(stderr: Option<ChildStderr>) -> String {
    let mut said = Vec::new();
    if let Some(stderr) = stderr {
        let mut limited = stderr.take(STDERR_BYTES_MAX as u64);
        let _ = limited.read_to_end(&mut said).await;
        // Drain the rest, so that pip cannot block on a full pipe.
        let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// `  Downloading litellm-1.2-py3-none-any.whl (12.3 MB)` → 12 300 000.
fn downloaded_bytes(line: &str) -> Option<u64> {
    let size = line.trim_start().strip_prefix("Downloading ")?;
    let (number, unit) = size
        .rsplit_once('(')?
        .1
        .trim_end_matches(')')
        .split_once(' ')?;
    let factor = match unit {
        "bytes" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some((number.parse::<f64>().ok()? * factor) as u64)
}

/// The packages that pip installed, and a fingerprint of them: pip records the hash of every file.
fn inventory(packages: &Path) -> Result<(BTreeMap<String, String>, String), StorageError> {
    let storage = |error| StorageError::new("read", packages, error);
    let mut components = BTreeMap::new();
    let mut records = BTreeMap::new();
    for entry in std::fs::read_dir(packages).map_err(storage)? {
        let entry = entry.map_err(storage)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((package, version)) = name
            .strip_suffix(".dist-info")
            .and_then(|name| name.split_once('-'))
        else {
            continue;
        };
        components.insert(package.to_owned(), version.to_owned());
        let record = std::fs::read(entry.path().join("RECORD")).unwrap_or_default();
        records.insert(name, record);
    }
    let mut hasher = Sha256::new();
    for (name, record) in records {
        hasher.update(name.as_bytes());
        // Compiled files contain timestamps, so they differ from host to host.
        for line in record.split(|byte| *byte == b'\n') {
            if !line.windows(5).any(|part| part == b".pyc,") {
                hasher.update(line);
            }
        }
    }
    Ok((
        components,
        format!(
            "sha256:{}",
            base16ct::lower::encode_string(&hasher.finalize())
        ),
    ))
}

/// Writes the program that starts the agent: it puts the agent's packages first, and sets no variable that its tools
/// would inherit.
fn write_launcher(tree: &Path, entry: &str) -> Result<(), StorageError> {
    let (module, function) = entry.split_once(':').unwrap_or((entry, "main"));
    let text = format!(
        "import os\nimport sys\n\n\
         sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), \"{PACKAGES}\"))\n\n\
         from {module} import {function}\n\nsys.exit({function}())\n"
    );
    let path = tree.join(LAUNCHER);
    std::fs::write(&path, text).map_err(|error| StorageError::new("write", &path, error))
}

/// Makes everything readable by the user of a sandbox, whatever our umask, and counts the bytes.
fn make_readable(directory: &Path) -> Result<u64, StorageError> {
    let storage = |error| StorageError::new("set permissions in", directory, error);
    let mut bytes = 0;
    std::fs::set_permissions(directory, Permissions::from_mode(0o755)).map_err(storage)?;
    for entry in std::fs::read_dir(directory).map_err(storage)? {
        let entry = entry.map_err(storage)?;
        let metadata = entry.path().symlink_metadata().map_err(storage)?;
        if metadata.is_dir() {
            bytes += make_readable(&entry.path())?;
        } else if metadata.is_file() {
            bytes += metadata.len();
            let is_program = metadata.permissions().mode() & 0o111 != 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            std::fs::set_permissions(entry.path(), Permissions::from_mode(mode))
                .map_err(storage)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_what_pip_prints() {
        let bytes = |line| downloaded_bytes(line);
        assert_eq!(bytes("  Downloading a-1.whl (1.5 MB)"), Some(1_500_000));
        assert_eq!(bytes("Downloading a-1.whl.metadata (345 bytes)"), Some(345));
        assert_eq!(bytes("  Using cached a-1.whl (1.5 MB)"), None);
    }

    #[test]
    fn the_launcher_runs_its_own_packages_and_leaves_the_environment_alone() {
        let tree = tempfile::tempdir().unwrap();
        let module = tree.path().join("site-packages/greeter");
        std::fs::create_dir_all(&module).unwrap();
        let text = "import os\ndef main():\n    print('PYTHONPATH' in os.environ)\n    return 7\n";
        std::fs::write(module.join("__init__.py"), text).unwrap();
        write_launcher(tree.path(), "greeter:main").unwrap();
        let output = std::process::Command::new("/usr/bin/python3")
            .arg("-I")
            .arg(tree.path().join(LAUNCHER))
            .output()
            .unwrap();
        assert_eq!(
            (
                output.status.code(),
                &*String::from_utf8_lossy(&output.stdout)
            ),
            (Some(7), "False\n")
        );
    }

    #[test]
    fn the_inventory_names_every_package() {
        let packages = tempfile::tempdir().unwrap();
        for name in ["a_b-1.0.dist-info", "c-2.dist-info"] {
            std::fs::create_dir(packages.path().join(name)).unwrap();
        }
        let record = |text: &str| {
            std::fs::write(packages.path().join("c-2.dist-info/RECORD"), text).unwrap();
            inventory(packages.path()).unwrap()
        };
        let (components, first) = record("c.py,sha256=x,1\n__pycache__/c.pyc,,\n");
        assert_eq!(components["a_b"], "1.0");
        assert_eq!(components.len(), 2);
        assert_eq!(record("c.py,sha256=x,1\n").1, first);
        assert_ne!(record("c.py,sha256=y,1\n").1, first);
    }
}
