//! Where a live agent runs: in a sandbox, or on this machine.

use std::sync::Arc;

use rollcage_live::LiveServer;
use rollcage_model::id::RolloutId;
use rollcage_proxy::Session;
use rollcage_sandbox::Sandbox;

use super::LiveError;
use super::machine::{Machine, MachineServer};
use super::sandboxed::{OpenSandbox, Recorded, ServerPlace};
use crate::context::Context;
use crate::feed::Feed;
use crate::judge::Ending;

/// What outlives the server's place.
pub(super) enum Base {
    Sandboxed(Box<Recorded>),
    Machine(Box<Machine>),
}

/// A place that is open, with a server in it.
pub(super) enum Open {
    Sandboxed(Box<OpenSandbox>),
    Machine(MachineServer),
}

impl Open {
    pub(super) fn server(&self) -> &Arc<LiveServer> {
        match self {
            Open::Sandboxed(open) => &open.server,
            Open::Machine(open) => &open.server,
        }
    }

    pub(super) fn sandbox(&self) -> Option<&Arc<Box<dyn Sandbox>>> {
        match self {
            Open::Sandboxed(open) => Some(&open.sandbox),
            Open::Machine(_) => None,
        }
    }

    pub(super) fn variant(&self) -> Option<&String> {
        match self {
            Open::Sandboxed(open) => open.variant.as_ref(),
            Open::Machine(open) => open.variant.as_ref(),
        }
    }
}

impl Base {
    pub(super) fn version(&self) -> &str {
        match self {
            Base::Sandboxed(recorded) => recorded.version(),
            Base::Machine(machine) => machine.version(),
        }
    }

    pub(super) fn model(&self) -> &str {
        match self {
            Base::Sandboxed(recorded) => recorded.model(),
            Base::Machine(machine) => machine.model(),
        }
    }

    /// Its record, with the session that is recorded and the events of it; nothing is recorded without a sandbox.
    pub(super) fn recorded(&self) -> Option<(RolloutId, &Arc<Session>, &Arc<Feed>)> {
        match self {
            Base::Sandboxed(recorded) => Some((recorded.id(), recorded.session(), recorded.feed())),
            Base::Machine(_) => None,
        }
    }

    pub(super) fn memory_bytes_max(&self) -> Option<u64> {
        match self {
            Base::Sandboxed(recorded) => Some(recorded.memory_bytes_max()),
            Base::Machine(_) => None,
        }
    }

    pub(super) async fn open(
        &mut self,
        cx: &Context,
        place: &ServerPlace<'_>,
    ) -> Result<Open, LiveError> {
        match self {
            Base::Sandboxed(recorded) => {
                let open = recorded.open(cx, place).await?;
                Ok(Open::Sandboxed(Box::new(open)))
            }
            Base::Machine(machine) => Ok(Open::Machine(machine.open(place).await?)),
        }
    }

    /// Ends the server and saves the files. Without a sandbox they are on disk anyway.
    pub(super) async fn save(
        &mut self,
        cx: &Context,
        open: &Open,
        place: &ServerPlace<'_>,
    ) -> Result<(), LiveError> {
        match (self, open) {
            (Base::Sandboxed(recorded), Open::Sandboxed(open)) => {
                recorded.save(cx, open, place.directory).await
            }
            (_, open) => {
                open.server().stop().await;
                Ok(())
            }
        }
    }

    pub(super) async fn close(&mut self, open: Open) {
        match (self, open) {
            (Base::Sandboxed(recorded), Open::Sandboxed(open)) => recorded.close(*open).await,
            (_, open) => open.server().close().await,
        }
    }

    pub(super) async fn finish(self, cx: &Context, ending: Ending) -> Result<(), LiveError> {
        match self {
            Base::Sandboxed(recorded) => recorded.finish(cx, ending).await,
            Base::Machine(_) => Ok(()),
        }
    }
}
