//! The engine's end of a sandbox's control socket.
#![expect(
    unsafe_code,
    reason = "tokio asks for a promise about the descriptor's ownership"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{Shutdown, shutdown};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;

use crate::local::shared::wire;

pub(crate) struct Channel {
    socket: AsyncFd<OwnedFd>,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Channel> {
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // SAFETY: we own the descriptor, nothing closes or replaces it while it is registered.
        let socket = unsafe { AsyncFd::register(socket)? };
        Ok(Channel { socket })
    }

    pub(crate) async fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(result) =
                ready.try_io(|socket| wire::send(socket.as_fd(), message, descriptors))
            {
                return result;
            }
        }
    }

    /// Sends without waiting, or fails.
    pub(crate) fn send_now<T: Serialize>(&self, message: &T) -> io::Result<()> {
        wire::send(self.socket.as_fd(), message, &[])
    }

    pub(crate) async fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| wire::receive(socket.as_fd())) {
                // The peer closed with data of ours unread. What it sent before can still be received.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Closes the connection, which ends the sandbox, even if a process handle still holds the channel.
    pub(crate) fn hang_up(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}
