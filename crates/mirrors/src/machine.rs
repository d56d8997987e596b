//! Reads settings files of the real machine.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::host::FILE_BYTES_MAX;

/// A file's text, of which one byte more than the limit is read, so that its size is noticed.
pub fn read(path: &Path) -> io::Result<String> {
    // How tools are told that there is no such file.
    if path == Path::new("/dev/null") {
        return Ok(String::new());
    }
    // A pipe could keep its reader waiting for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).or_else(|error| match error.as_bytes().len() > FILE_BYTES_MAX {
        // The limit may have cut a letter in two.
        true => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        false => Err(io::Error::other("it is not UTF-8")),
    })
}

/// The names of what is in a directory.
pub fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        // A name that is not UTF-8 is none that a tool's settings have.
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.conf");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read(&path).unwrap(), "text");
        std::fs::write(&path, "é".repeat(FILE_BYTES_MAX)).unwrap();
        assert!(read(&path).unwrap().len() > FILE_BYTES_MAX);
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "it is not UTF-8");
        let error = read(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "it is no regular file");
        let absent = read(&folder.path().join("b")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        assert_eq!(read(Path::new("/dev/null")).unwrap(), "");
        assert_eq!(list(folder.path()).unwrap(), ["a.conf"]);
    }
}
