//! Reads what a task uploads from this machine: files of any bytes, and directories with all that is in them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rollcage_engine::intake::Upload;

/// For everything that one task uploads, which is stored in the sandbox's memory.
const BYTES_MAX: u64 = 1 << 30;
const ENTRIES_MAX: usize = 10_000;

/// Adds a file, or a directory as its content. The error says what is wrong with which of them.
pub(crate) fn add(
    uploads: &mut BTreeMap<String, Upload>,
    target: &str,
    source: &Path,
) -> Result<(), String> {
    let metadata = fs::metadata(source).map_err(|error| said(source, error))?;
    let held = uploads.values().map(|upload| match upload {
        Upload::File { content, .. } => content.len() as u64,
        Upload::Link { .. } | Upload::Directory => 0,
    });
    let held = &mut held.sum();
    if metadata.is_dir() {
        return add_tree((uploads, held), target, source, Path::new(""));
    }
    add_file((uploads, held), target.to_owned(), source, &metadata)
}

/// What is uploaded, and how many bytes it has.
type Uploads<'a> = (&'a mut BTreeMap<String, Upload>, &'a mut u64);

fn add_tree(
    (uploads, held): Uploads<'_>,
    target: &str,
    root: &Path,
    inner: &Path,
) -> Result<(), String> {
    let directory = root.join(inner);
    let entries = fs::read_dir(&directory).map_err(|error| said(&directory, error))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(|error| said(&directory, error))?.file_name());
        if names.len() > ENTRIES_MAX {
            return Err(too_many(root));
        }
    }
    if names.is_empty() {
        return insert(uploads, target.to_owned(), Upload::Directory, root);
    }
    names.sort();
    for name in names {
        let inner = inner.join(&name);
        let source = root.join(&inner);
        let Some(name) = name.to_str() else {
            return Err(format!("{}: its name is no UTF-8", source.display()));
        };
        let target = format!("{target}/{name}");
        let metadata = fs::symlink_metadata(&source).map_err(|error| said(&source, error))?;
        if metadata.is_dir() {
            add_tree((uploads, held), &target, root, &inner)?;
        } else if metadata.is_symlink() {
            let link = fs::read_link(&source).map_err(|error| said(&source, error))?;
            let link = link.to_str().filter(|_| stays_inside(&inner, &link));
            let Some(link) = link else {
                return Err(format!(
                    "{}: a link that leads out of {}, which cannot be uploaded",
                    source.display(),
                    root.display()
                ));
            };
            let link = Upload::Link {
                target: link.to_owned(),
            };
            insert(uploads, target, link, root)?;
        } else {
            add_file((uploads, held), target, &source, &metadata)?;
        }
    }
    Ok(())
}

fn add_file(
    uploads: Uploads<'_>,
    target: String,
    source: &Path,
    metadata: &fs::Metadata,
) -> Result<(), String> {
    if !metadata.is_file() {
        return Err(format!(
            "{}: neither a file nor a directory nor a link",
            source.display()
        ));
    }
    let (uploads, held) = uploads;
    *held += metadata.len();
    if *held > BYTES_MAX {
        return Err(format!(
            "{}: the uploads of a task are larger than 1 GiB in all; show large data with --mount",
            source.display()
        ));
    }
    let content = fs::read(source).map_err(|error| said(source, error))?;
    let file = Upload::File {
        content,
        is_executable: metadata.mode() & 0o100 != 0,
    };
    insert(uploads, target, file, source)
}

fn insert(
    uploads: &mut BTreeMap<String, Upload>,
    target: String,
    upload: Upload,
    source: &Path,
) -> Result<(), String> {
    uploads.insert(target, upload);
    match uploads.len() > ENTRIES_MAX {
        true => Err(too_many(source)),
        false => Ok(()),
    }
}

fn said(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn too_many(path: &Path) -> String {
    format!(
        "{}: the uploads of a task are more than {ENTRIES_MAX} files in all; upload an archive and unpack it in `setup`, or \
         show the directory with --mount",
        path.display()
    )
}

/// Whether a link at `inner` stays below the directory that both are relative to, whatever other links there are.
fn stays_inside(inner: &Path, link: &Path) -> bool {
    let mut reached: Vec<_> = inner.components().collect();
    reached.pop();
    let mut has_gone_down = false;
    for part in link.components() {
        match part {
            Component::Normal(_) => {
                reached.push(part);
                has_gone_down = true;
            }
            // After a name, which may itself be a link, nothing is known of where `..` leads.
            Component::ParentDir if has_gone_down => return false,
            Component::ParentDir => {
                if reached.pop().is_none() {
                    return false;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    !link.as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn read(source: &Path) -> Result<BTreeMap<String, Upload>, String> {
        let mut uploads = BTreeMap::new();
        add(&mut uploads, "data", source).map(|()| uploads)
    }

    #[test]
    fn a_directory_goes_in_whole() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/empty")).unwrap();
        fs::write(root.path().join("a/b"), [0, 255]).unwrap();
        fs::write(root.path().join("run"), "x").unwrap();
        let executable = fs::Permissions::from_mode(0o700);
        fs::set_permissions(root.path().join("run"), executable).unwrap();
        symlink("../run", root.path().join("a/link")).unwrap();
        let program = Upload::File {
            content: b"x".to_vec(),
            is_executable: true,
        };
        let link = Upload::Link {
            target: "../run".to_owned(),
        };
        assert_eq!(
            read(root.path()).unwrap(),
            BTreeMap::from([
                ("data/a/b".to_owned(), Upload::file([0, 255])),
                ("data/a/empty".to_owned(), Upload::Directory),
                ("data/a/link".to_owned(), link),
                ("data/run".to_owned(), program.clone()),
            ])
        );
        let only = BTreeMap::from([("data".to_owned(), program)]);
        assert_eq!(read(&root.path().join("run")), Ok(only));
    }

    #[test]
    fn what_cannot_go_in_is_named() {
        let root = tempfile::tempdir().unwrap();
        let check = |expect: &str| {
            let error = read(root.path()).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        for target in ["/etc/passwd", "../x", "a/../../x"] {
            symlink(target, root.path().join("link")).unwrap();
            check("link: a link that leads out of");
            fs::remove_file(root.path().join("link")).unwrap();
        }
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        check("socket: neither a file nor a directory nor a link");
        fs::remove_file(root.path().join("socket")).unwrap();
        // Sparse, so that it takes no disk.
        let large = fs::File::create(root.path().join("large")).unwrap();
        large.set_len(BYTES_MAX + 1).unwrap();
        check("larger than 1 GiB in all");
        fs::remove_file(root.path().join("large")).unwrap();
        for number in 0..=ENTRIES_MAX {
            fs::File::create(root.path().join(number.to_string())).unwrap();
        }
        check("more than 10000 files in all");
        let none = read(Path::new("/nonexistent/x")).unwrap_err();
        assert!(none.contains("No such file"), "{none}");
    }
}
