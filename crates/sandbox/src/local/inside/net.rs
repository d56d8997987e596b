//! The sandbox's network: a loopback interface, and listening sockets that the engine serves.
#![expect(
    unsafe_code,
    reason = "interface flags are set by ioctl; connecting without waiting"
)]

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

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
    Ok(())
}

/// Configures the current network namespace, through the `net` directory of a writable `/proc/sys`. Best effort: a
/// kernel without a setting uses its default.
pub(crate) fn tune(settings: &Path) {
    let set = |name: &str, value: &str| {
        let _ = fs::write(settings.join("ipv4").join(name), value);
    };
    // Nobody else uses this namespace, so its low ports need no protection.
    set("ip_unprivileged_port_start", "0");
    // TCP socket buffers use memory of the whole machine, which not every limit of a sandbox covers.
    set("tcp_rmem", "4096 65536 131072");
    set("tcp_wmem", "4096 16384 131072");
}

pub(crate) fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// Connects to a service here without waiting: the receiver of the socket waits for it, not the caller.
pub(crate) fn connect(port: u16) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidData)?,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: Ipv4Addr::LOCALHOST.to_bits().to_be(),
        },
        sin_zero: [0; 8],
    };
    let size =
        libc::socklen_t::try_from(size_of_val(&address)).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the address outlives the call, and `size` is its size.
    let result = unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), size) };
    match result {
        0 => Ok(stream),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(stream),
            error => Err(error),
        },
    }
}
