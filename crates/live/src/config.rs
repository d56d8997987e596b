//! OpenCode's configuration file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde_json::{Map, Value, json};

const FILE: &str = "opencode.json";

/// The model, as the configuration file names it.
#[derive(Clone)]
pub struct Provider {
    /// The provider's name in model names, as in `rollcage/MODEL`.
    pub name: String,
    pub base_url: String,
    pub key: String,
    /// One or more model names, verbatim; the first is the default.
    pub models: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("a live agent needs at least one model")]
    NoModel,
}

/// The text of `opencode.json`.
pub fn config_text(provider: &Provider) -> Result<String, ConfigError> {
    let Provider {
        name,
        base_url,
        key,
        models,
    } = provider;
    let first = models.first().ok_or(ConfigError::NoModel)?;
    let models: Map<String, Value> = models.iter().map(|id| (id.clone(), json!({}))).collect();
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": format!("{name}/{first}"),
        "provider": {name: {
            "npm": "@ai-sdk/openai-compatible",
            "name": name,
            "options": {"baseURL": base_url, "apiKey": key},
            "models": models,
        }},
    });
    Ok(format!("{config:#}\n"))
}

/// Writes `<home>/.config/opencode/opencode.json`: the directory 0700, the file 0600 from its first byte, replaced atomically.
/// Returns its path. A link in place of one of the directories is refused, since it may lead to where others write.
pub fn write_config(home: &Path, provider: &Provider) -> Result<PathBuf, ConfigError> {
    let text = config_text(provider)?;
    let path = home.join(".config/opencode").join(FILE);
    match write_below(home, text.as_bytes()) {
        Ok(()) => Ok(path),
        Err(source) => Err(ConfigError::Write { path, source }),
    }
}

fn write_below(home: &Path, text: &[u8]) -> io::Result<()> {
    let directory = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let home = openat(AT_FDCWD, home, directory, Mode::empty())?;
    let config = open_or_make(&home, ".config")?;
    let own = open_or_make(&config, "opencode")?;
    // It may have been there with wider rights.
    fchmod(&own, Mode::S_IRWXU)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let temporary = format!(".{FILE}.{:016x}", u64::from_ne_bytes(random));
    let written = write_new(&own, &temporary, text)
        .and_then(|()| Ok(renameat(&own, temporary.as_str(), &own, FILE)?));
    if written.is_err() {
        let _ = unlinkat(&own, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    written
}

fn open_or_make(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn write_new(directory: &OwnedFd, name: &str, text: &[u8]) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let only_ours = Mode::S_IRUSR | Mode::S_IWUSR;
    let file = openat(directory, name, flags, only_ours)?;
    // A strict umask may have taken away our own rights.
    fchmod(&file, only_ours)?;
    let mut file = File::from(file);
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn provider() -> Provider {
        Provider {
            name: "rollcage".to_owned(),
            base_url: "http://127.0.0.1:7000/v1".to_owned(),
            key: "sk-7".to_owned(),
            models: vec!["org/team/model-1".to_owned(), "other".to_owned()],
        }
    }

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn names_the_models_verbatim_and_the_first_as_the_default() {
        let text = config_text(&provider()).unwrap();
        let expect = json!({
            "$schema": "https://opencode.ai/config.json",
            "model": "rollcage/org/team/model-1",
            "provider": {"rollcage": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "rollcage",
                "options": {"baseURL": "http://127.0.0.1:7000/v1", "apiKey": "sk-7"},
                "models": {"org/team/model-1": {}, "other": {}},
            }},
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expect);
        let models = vec![];
        let none = config_text(&Provider {
            models,
            ..provider()
        });
        assert!(matches!(none, Err(ConfigError::NoModel)));
    }

    #[test]
    fn only_its_owner_can_read_it_also_where_a_wider_one_was() {
        let home = tempfile::tempdir().unwrap();
        for round in 0..2 {
            let path = write_config(home.path(), &provider()).unwrap();
            let directory = path.parent().unwrap();
            assert_eq!((mode(&path), mode(directory)), (0o600, 0o700), "{round}");
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text, config_text(&provider()).unwrap());
            use std::os::unix::fs::PermissionsExt;
            for (path, wide) in [(directory, 0o755), (path.as_path(), 0o644)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(wide)).unwrap();
            }
        }
    }

    #[test]
    fn a_link_is_replaced_or_refused_never_followed() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        std::fs::write(&target, "theirs").unwrap();
        let path = write_config(home.path(), &provider()).unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&target, &path).unwrap();
        write_config(home.path(), &provider()).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "theirs");

        let directory = path.parent().unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        symlink(elsewhere.path(), directory).unwrap();
        let error = write_config(home.path(), &provider()).unwrap_err();
        assert!(error.to_string().ends_with("opencode.json"), "{error}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_no_temporary_file() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".config/opencode");
        // A directory of that name cannot be replaced by a file.
        std::fs::create_dir_all(directory.join(FILE).join("inside")).unwrap();
        write_config(home.path(), &provider()).unwrap_err();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    }
}
