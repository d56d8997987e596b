//! The lowest layer of every sandbox's root: an allow list. What is not created or copied here, and not in `/usr`, does
//! not exist in a sandbox.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

use crate::guest::{self, HOME, USER, USER_ID};
use crate::local::shared::PROGRAM_DIRECTORIES;

/// Directories of every root; the sandbox's own layer adds `/home/user`, whose owner differs per sandbox.
const DIRECTORIES: &[(&str, u32)] = &[
    ("usr", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("proc", 0o555),
    ("dev", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("run", 0o755),
    ("opt", 0o755),
    ("opt/setup", 0o755),
    ("opt/rollcage", 0o755),
    ("opt/rollcage/bin", 0o755),
    ("opt/rollcage/verify", 0o755),
    ("opt/rollcage/verify/bin", 0o755),
    ("opt/rollcage/verify/home", 0o755),
    ("opt/rollcage/verify/python", 0o755),
    ("opt/rollcage/verify/run", 0o755),
    ("root", 0o700),
    ("srv", 0o755),
    ("mnt", 0o755),
    ("sys", 0o555),
];

/// The parts of the host's `/etc` that programs need and that are not sensitive. A file is copied only if all users of
/// the host may read it. Not here, and not to be added: accounts, shadow, ssh, machine-id, package manager and git
/// settings, anything that may hold a credential or a host's name.
const ETC: &[&str] = &[
    // The dynamic linker, and Debian's choice between equivalent programs.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    // Certificate authorities, wherever distributions keep them.
    "ssl/certs",
    "ssl/openssl.cnf",
    "ssl/cert.pem",
    "ca-certificates.crt",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "pki/ca-trust/extracted",
    "crypto-policies/back-ends",
    // Time, languages, terminals, file types.
    "localtime",
    "timezone",
    "locale.alias",
    "locale.conf",
    "terminfo",
    "inputrc",
    "mime.types",
    "magic",
    "magic.mime",
    "fonts",
    // Names of numbers.
    "protocols",
    "services",
    "rpc",
    "ethertypes",
    // Which system this is.
    "os-release",
    "debian_version",
    "lsb-release",
    "redhat-release",
    "alpine-release",
    // Language runtimes that split their installation between /usr and /etc.
    "perl",
    "python3",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "java",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "maven",
];

const FILE_BYTES_MAX: u64 = 4 << 20;
const DEPTH_MAX: u32 = 8;

/// Files we write ourselves. Where a sandbox has no gates, resolvers find nobody on port 53 and fail at once instead of
/// waiting for a server out of reach.
const GENERATED: &[(&str, &str)] = &[
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    (
        "resolv.conf",
        "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    ),
    ("shells", "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n"),
    ("host.conf", "multi on\n"),
];

/// Names that tasks expect, and the program that many hosts have instead.
const ALIASES: &[(&str, &str)] = &[("python", "python3"), ("pip", "pip3")];
/// Where programs of the host are seen inside as well.
const PROGRAMS: &[&str] = &["usr/local/bin", "usr/bin"];

/// What verify commands use of ours: a path, its mode, its content.
const OF_VERIFY: &[(&str, u32, &str)] = &[
    (
        "python/sitecustomize.py",
        0o644,
        include_str!("verify/sitecustomize.py"),
    ),
    (
        "python/rollcage_imports.py",
        0o644,
        include_str!("verify/rollcage_imports.py"),
    ),
    (
        "python/rollcage_pytest.py",
        0o644,
        include_str!("verify/rollcage_pytest.py"),
    ),
    ("python/none.ini", 0o644, "[pytest]\n"),
    ("bin/git", 0o755, include_str!("verify/git")),
    ("gitconfig", 0o644, include_str!("verify/gitconfig")),
];

/// Fills the empty directory `root`.
pub(crate) fn build(root: &Path, host: &Path) -> io::Result<()> {
    for &(name, mode) in DIRECTORIES {
        make_directory(&root.join(name), mode)?;
    }
    for name in PROGRAM_DIRECTORIES {
        match fs::symlink_metadata(host.join(name)) {
            Ok(metadata) if metadata.is_symlink() => {
                symlink(fs::read_link(host.join(name))?, root.join(name))?
            }
            Ok(metadata) if metadata.is_dir() => make_directory(&root.join(name), 0o755)?,
            _ => {}
        }
    }
    for (alias, program) in ALIASES {
        link_alias(root, host, alias, program)?;
    }
    for name in pythons(host) {
        order_packages(root, &name)?;
    }
    // A mount point.
    File::create_new(root.join(guest::AS_AGENT.trim_start_matches('/')))?;
    let verify = root.join(guest::VERIFY.trim_start_matches('/'));
    for (name, mode, content) in OF_VERIFY {
        let path = verify.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
    }
    symlink("/run", root.join("var/run"))?;
    symlink("/proc/self/mounts", root.join("etc/mtab"))?;
    for name in ETC {
        let (from, to) = (host.join("etc").join(name), root.join("etc").join(name));
        if let (Some(parent), Ok(_)) = (to.parent(), fs::symlink_metadata(&from)) {
            fs::create_dir_all(parent)?;
        }
        copy(&from, &to, DEPTH_MAX)?;
    }
    for (name, content) in GENERATED {
        fs::write(root.join("etc").join(name), content)?;
    }
    for (name, content) in accounts() {
        fs::write(root.join("etc").join(name), content)?;
    }
    open_modes(&root.join("opt"), DEPTH_MAX)?;
    open_modes(&root.join("etc"), DEPTH_MAX)
}

fn link_alias(root: &Path, host: &Path, alias: &str, program: &str) -> io::Result<()> {
    let found = |name: &str| {
        let mut paths = PROGRAMS
            .iter()
            .map(|directory| Path::new(directory).join(name));
        paths.find(|path| host.join(path).exists())
    };
    match (found(alias), found(program)) {
        (None, Some(program)) => {
            let link = root
                .join(guest::ALIASES.trim_start_matches('/'))
                .join(alias);
            symlink(Path::new("/").join(program), link)
        }
        _ => Ok(()),
    }
}

/// The names of all Pythons of the host, such as `python3.12`.
fn pythons(host: &Path) -> BTreeSet<String> {
    let directories = PROGRAMS.iter().map(|directory| host.join(directory));
    let entries = directories.flat_map(|directory| fs::read_dir(directory).into_iter().flatten());
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_python = |name: &String| {
        let minor = name.strip_prefix("python3.");
        minor.is_some_and(|minor| {
            !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    names.filter(is_python).collect()
}

/// Fills [`guest::PYTHON_BASE`] for one Python.
fn order_packages(root: &Path, python: &str) -> io::Result<()> {
    let packages = |base: &str| format!("{base}/lib/{python}/site-packages");
    let directory = root.join(packages(guest::PYTHON_BASE).trim_start_matches('/'));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)?;
    // Python runs lines that begin with `import`, before it adds the system's packages. The first file in the order of names
    // is ours: a command that sets PYTHONPATH itself has it as well.
    let own = format!(
        "import sys; sys.path.insert(0, '{0}'); import rollcage_imports; sys.path.remove('{0}')\n",
        guest::VERIFY_PYTHON
    );
    fs::write(directory.join("0-rollcage.pth"), own)?;
    let first = format!(
        "import site; site.addsitedir('{}')\n",
        packages(guest::SETUP)
    );
    fs::write(directory.join("setup.pth"), first)?;
    // It imports this module when all else is in place.
    let last = packages(&format!("{HOME}/.local"));
    fs::write(
        directory.join("usercustomize.py"),
        format!("import sys\n\nsys.path.append('{last}')\n"),
    )
}

/// Who there is inside.
fn accounts() -> [(&'static str, String); 2] {
    [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/root:/bin/bash\n{USER}:x:{USER_ID}:{USER_ID}:{USER}:{HOME}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        (
            "group",
            format!("root:x:0:\ntty:x:5:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n"),
        ),
    ]
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().create(path)?;
    // Not with the builder, whose mode is reduced by the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Copies what all users may read; silently skips the rest, and what vanishes meanwhile.
fn copy(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(from) else {
        return Ok(());
    };
    let mode = metadata.permissions().mode();
    if metadata.is_symlink() {
        return fs::read_link(from).map_or(Ok(()), |target| symlink(target, to));
    }
    if metadata.is_dir() && mode & 0o005 == 0o005 && depth > 0 {
        let Ok(entries) = fs::read_dir(from) else {
            return Ok(());
        };
        fs::create_dir_all(to)?;
        for entry in entries.flatten() {
            copy(&entry.path(), &to.join(entry.file_name()), depth - 1)?;
        }
    }
    if metadata.is_file() && mode & 0o004 != 0 && metadata.len() <= FILE_BYTES_MAX {
        let Ok(mut source) = File::open(from) else {
            return Ok(());
        };
        io::copy(&mut source, &mut File::create(to)?)?;
        fs::set_permissions(to, fs::Permissions::from_mode(mode & 0o755))?;
    }
    Ok(())
}

/// Undoes the engine's umask: programs in the sandbox must be able to read all this.
fn open_modes(path: &Path, depth: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let mode = metadata.permissions().mode();
    if metadata.is_dir() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        if depth > 0 {
            for entry in fs::read_dir(path)? {
                open_modes(&entry?.path(), depth - 1)?;
            }
        }
    } else if metadata.is_file() && mode & 0o444 != 0o444 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_may_read_is_copied() {
        let host = tempfile::tempdir().unwrap();
        let etc = host.path().join("etc");
        fs::create_dir_all(etc.join("ssl/certs")).unwrap();
        fs::create_dir_all(etc.join("ssl/private")).unwrap();
        fs::create_dir_all(host.path().join("lib64")).unwrap();
        symlink("usr/bin", host.path().join("bin")).unwrap();
        for (name, mode) in [
            ("shadow", 0o640),
            ("services", 0o644),
            ("rpc", 0o600),
            ("gitconfig", 0o644),
            ("ssl/certs/a.pem", 0o644),
            ("ssl/certs/key.pem", 0o640),
            ("ssl/private/key", 0o644),
        ] {
            fs::write(etc.join(name), name).unwrap();
            fs::set_permissions(etc.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let root = tempfile::tempdir().unwrap();
        build(root.path(), host.path()).unwrap();
        let there = |name: &str| fs::symlink_metadata(root.path().join(name)).is_ok();
        let present = [
            "etc/services",
            "etc/ssl/certs/a.pem",
            "bin",
            "lib64",
            "var/tmp",
        ];
        let absent = [
            "etc/shadow",
            "etc/rpc",
            "etc/gitconfig",
            "etc/ssl/certs/key.pem",
            "etc/ssl/private",
            "sbin",
        ];
        assert!(present.into_iter().all(there), "{present:?}");
        assert!(!absent.into_iter().any(there), "{absent:?}");
    }
}
