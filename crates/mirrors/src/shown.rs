//! Which of this machine's files are at the same place inside a sandbox.

use std::path::{Component, Path};

/// What sandboxes see of this machine, as far as certificates can stand there.
const SHOWN: [&str; 6] = [
    "/usr",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ca-certificates.crt",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
];

pub(crate) fn not_shown(setting: &str) -> String {
    format!(
        "{setting} names a certificate file that sandboxes are not shown: put it below /etc/ssl/certs, or where this \
         distribution keeps its authorities, and name it there"
    )
}

/// The path, if it is one that is the same inside.
pub(crate) fn shown_path(path: &str) -> Option<&str> {
    let is_text = !path.contains(char::is_control);
    (is_text && is_shown(Path::new(path))).then_some(path)
}

pub(crate) fn is_shown(path: &Path) -> bool {
    let is_straight = !path.components().any(|part| part == Component::ParentDir);
    is_straight && SHOWN.iter().any(|shown| path.starts_with(shown))
}
