//! Errors of servers that cannot listen on the given address.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use crate::UsageError;

/// An address that is in use, unavailable or not permitted is a usage error.
pub(crate) fn refused(host: IpAddr, port: u16, error: io::Error) -> anyhow::Error {
    let place = format!("listen on {host} port {port}");
    match error.kind() {
        ErrorKind::AddrInUse => UsageError(format!(
            "{place}: another program has it (--port 0 takes a free one)"
        ))
        .into(),
        ErrorKind::AddrNotAvailable => {
            UsageError(format!("{place}: this machine has no such address")).into()
        }
        ErrorKind::PermissionDenied => {
            UsageError(format!("{place}: not allowed (ports from 1024 on are)")).into()
        }
        _ => anyhow::Error::from(error).context(place),
    }
}
