//! An agent that runs as a server (`opencode serve`): started, watched, and driven turn by turn.
//!
//! Reading order: [`client`] (the server's HTTP interface), [`turn`] ([`drive_turn`]: one turn as a sequence of replies),
//! [`server`] ([`LiveServer`]: the process and its health), [`place`] (where it runs: a sandbox or this machine), [`log`], [`config`]
//! and [`forward`].
//!
//! It knows no rollouts, no records and no models: whoever uses it says where the model is.

pub mod client;
pub mod config;
#[cfg(test)]
mod fake;
pub mod forward;
pub mod log;
pub mod place;
pub mod server;
pub mod turn;

pub use client::{Client, ClientError, Connect, Credentials, Health};
pub use config::{ConfigError, Provider, write_config};
pub use place::{Company, HostPlace, Place, ProcessIdentity, SandboxPlace};
pub use server::{LiveServer, ServerOptions, StartError};
pub use turn::{TurnControls, TurnRequest, drive_turn};
