//! Why a server cannot listen where it was told to.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use crate::WrongUse;

/// An address that is taken, not ours or not allowed is for the user to change.
pub(crate) fn refused(host: IpAddr, port: u16, error: io::Error) -> anyhow::Error {
    let place = format!("listen on {host} port {port}");
    match error.kind() {
        ErrorKind::AddrInUse => WrongUse(format!(
            "{place}: another program has it (--port 0 takes a free one)"
        ))
        .into(),
        ErrorKind::AddrNotAvailable => {
            WrongUse(format!("{place}: this machine has no such address")).into()
        }
        ErrorKind::PermissionDenied => {
            WrongUse(format!("{place}: not allowed (ports from 1024 on are)")).into()
        }
        _ => anyhow::Error::from(error).context(place),
    }
}
