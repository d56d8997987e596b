//! What all rollouts and live agents of a process share.

use std::sync::Arc;

use rollcage_proxy::Profiles;
use rollcage_proxy::outbound::Clients;
use rollcage_sandbox::Sandboxes;

use crate::intake::Preparer;
use crate::store::Store;
use crate::warm::WarmAgents;

/// State shared by all rollouts of a process.
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) preparer: Preparer,
    pub(crate) clients: Arc<Clients>,
    pub(crate) profiles: Arc<Profiles>,
    pub(crate) warm: WarmAgents,
}
