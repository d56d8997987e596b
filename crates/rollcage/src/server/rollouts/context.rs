//! The server's data that requests are validated against.

use std::sync::Arc;
use std::time::Duration;

use rollcage_engine::intake::Catalogue;

use crate::server::tasks::Tasks;

/// The tasks and the catalogue of one server. They do not change while the server runs.
pub(crate) struct RequestContext {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// The time limit for the body of a request.
    pub(crate) body_limit: Duration,
}
