//! The sandbox's network: a loopback interface, and listening sockets that the engine serves.
#![expect(
    unsafe_code,
    reason = "interface flags are set by ioctl; connecting without waiting"
)]

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use crate::PROXY_PORT;
use crate::local::shared::wire::{Failure, WithStep};

/// The kernel's number for `lo` in every network namespace.
const LOOPBACK: u32 = 1;
/// An address of the sandbox's own, out of a network for tests of devices, which is nobody's.
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);

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
        let _ = fs::write(settings.join(name), value);
    };
    // Nobody else uses this namespace, so its low ports need no protection.
    set("ipv4/ip_unprivileged_port_start", "0");
    // TCP socket buffers use memory of the whole machine, which not every limit of a sandbox covers: the kernel lets each
    // connection fill its first buffer beyond the limit, and charges to nobody what was not accepted yet. Buffers grow where
    // somebody reads.
    set("ipv4/tcp_rmem", "4096 16384 65536");
    set("ipv4/tcp_wmem", "4096 16384 131072");
    set("core/somaxconn", "128");
}

pub(crate) fn listen(address: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
    Ok(TcpListener::bind((address, port))?.into())
}

/// Makes every IPv4 address one of ours and opens what [`crate::Gates`] is made of: proxy, DNS, then the ports.
pub(crate) fn gates(ports: &[u16]) -> Result<Vec<OwnedFd>, Failure> {
    own_every_address().step("route every address to the loopback interface")?;
    let mut sockets = vec![
        listen(Ipv4Addr::LOCALHOST, PROXY_PORT).step("listen for clients of the proxy")?,
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 53))
            .step("listen for DNS questions")?
            .into(),
    ];
    for port in ports {
        sockets.push(
            listen(Ipv4Addr::UNSPECIFIED, *port)
                .step(format!("intercept connections to port {port}"))?,
        );
    }
    Ok(sockets)
}

/// Adds the route `local 0.0.0.0/0 dev lo` to the current network namespace, and an address to `lo`, since resolvers
/// that look for configured addresses (AI_ADDRCONFIG) do not count 127.0.0.1.
fn own_every_address() -> io::Result<()> {
    let family = u8::try_from(libc::AF_INET).map_err(|_| io::ErrorKind::InvalidData)?;
    // As `rtmsg` has them: family, bits of destination and source, type of service, table, protocol, scope, type, flags.
    let route = [
        family,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ];
    let route = [&route[..], &[0; 4]].concat();
    change_network(
        libc::RTM_NEWROUTE,
        &[route, attribute(libc::RTA_OIF, LOOPBACK.to_ne_bytes())].concat(),
    )?;
    // As `ifaddrmsg` has them: family, bits, flags, scope, interface.
    let address = [&[family, 32, 0, 0][..], &LOOPBACK.to_ne_bytes()].concat();
    change_network(
        libc::RTM_NEWADDR,
        &[address, attribute(libc::IFA_LOCAL, OWN_ADDRESS.octets())].concat(),
    )
}

/// A number of rtnetlink's, as its `rtattr` has it.
fn attribute(kind: u16, value: [u8; 4]) -> Vec<u8> {
    [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat()
}

/// One request of rtnetlink and its answer.
fn change_network(kind: u16, body: &[u8]) -> io::Result<()> {
    const HEADER_BYTES: usize = size_of::<libc::nlmsghdr>();
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE;
    // As `nlmsghdr` has them: length, type, flags, sequence number, port.
    let request = [
        &u32::try_from(HEADER_BYTES + body.len())
            .map_err(invalid)?
            .to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &u16::try_from(flags).map_err(invalid)?.to_ne_bytes(),
        &[0; 8],
        body,
    ]
    .concat();
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    send(netlink.as_raw_fd(), &request, MsgFlags::empty())?;
    // A header, and a negative error number or 0.
    let mut answer = [0; 256];
    let count = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let told = answer.get(HEADER_BYTES..count);
    match told.and_then(|told| told.first_chunk::<4>()) {
        Some(&[0, 0, 0, 0]) => Ok(()),
        Some(&error) => Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(error))),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
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
