//! The sandbox's network: a loopback interface, and listening sockets that the engine answers.
#![expect(unsafe_code, reason = "interface flags are set by ioctl")]

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Brings `lo` up in the current network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    let control = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = libc::c_char::from_ne_bytes([b'l']);
    request.ifr_name[1] = libc::c_char::from_ne_bytes([b'o']);
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which outlives the call.
    if unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // Nobody else lives in this namespace, so its low ports need no guarding. Best effort.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    Ok(())
}

pub(crate) fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}
