//! What a request is read against.

use std::sync::Arc;
use std::time::Duration;

use rollcage_engine::intake::Catalogue;

use crate::server::tasks::Tasks;

/// The tasks and the catalogue of one server. Nothing of it changes while the server runs.
pub(crate) struct Surroundings {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// For the body of a request.
    pub(crate) body_limit: Duration,
}
