//! The machine's settings as they are given to this crate.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::preset::Preset;

/// A settings file of more bytes than this is not read.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;
/// A directory of settings with more files than this is read up to here.
const FILES_MAX: usize = 500;

/// Where settings are read. [`crate::machine`] has `read` and `list` for the real machine.
pub struct Host<'a> {
    /// All variables: some settings have names that can only be found by looking at every one.
    pub env: &'a BTreeMap<String, String>,
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
    /// The names of the files in a directory.
    pub list: &'a dyn Fn(&Path) -> io::Result<Vec<String>>,
}

impl<'a> Host<'a> {
    /// A variable that says something.
    pub(crate) fn variable(&self, name: &str) -> Option<&'a str> {
        let value = self.env.get(name)?.trim();
        (!value.is_empty()).then_some(value)
    }

    /// A path below the home directory of whoever runs the program.
    pub(crate) fn in_home(&self, path: &str) -> Option<PathBuf> {
        Some(Path::new(self.variable("HOME")?).join(path))
    }

    /// A path below the user's directory of settings.
    pub(crate) fn in_config(&self, path: &str) -> Option<PathBuf> {
        match self.variable("XDG_CONFIG_HOME") {
            Some(directory) => Some(Path::new(directory).join(path)),
            None => self.in_home(&format!(".config/{path}")),
        }
    }

    /// A settings file; that it exists but cannot be read is a note.
    pub(crate) fn file(&self, path: &Path, preset: &mut Preset) -> Option<String> {
        match (self.read)(path) {
            Ok(text) if text.len() > FILE_BYTES_MAX => {
                let limit = FILE_BYTES_MAX >> 20;
                preset.note(format!(
                    "{} is larger than {limit} MiB and was not read",
                    path.display()
                ));
                None
            }
            // Some editors begin a file with a byte order mark.
            Ok(text) => Some(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned()),
            Err(error) if is_absent(&error) => None,
            Err(error) => {
                preset.note(format!("{} could not be read: {error}", path.display()));
                None
            }
        }
    }

    /// The files in a directory whose names end like this, in order.
    pub(crate) fn files_in(
        &self,
        directory: &Path,
        endings: &[&str],
        preset: &mut Preset,
    ) -> Vec<PathBuf> {
        let mut names = match (self.list)(directory) {
            Ok(names) => names,
            Err(error) if is_absent(&error) => return Vec::new(),
            Err(error) => {
                preset.note(format!(
                    "{} could not be read: {error}",
                    directory.display()
                ));
                return Vec::new();
            }
        };
        names.retain(|name| !name.contains('/') && endings.iter().any(|end| name.ends_with(end)));
        names.sort();
        if names.len() > FILES_MAX {
            preset.note(format!(
                "{} has more than {FILES_MAX} files; the others were not read",
                directory.display()
            ));
            names.truncate(FILES_MAX);
        }
        names.into_iter().map(|name| directory.join(name)).collect()
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
