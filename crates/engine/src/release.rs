//! The end of a sandbox that connections to an agent's server share.

use std::sync::Arc;
use std::time::Duration;

use rollcage_sandbox::Sandbox;
use tokio::time::Instant;

/// How long requests to a dead server may still hold its sandbox.
const SHARING_LIMIT: Duration = Duration::from_secs(5);
const SHARING_PAUSE: Duration = Duration::from_millis(5);

/// Closes a sandbox once nobody else uses it: a client may be reading a served agent's messages until its server is dead.
pub(crate) async fn close_shared(
    mut sandbox: Arc<Box<dyn Sandbox>>,
) -> Result<(), rollcage_sandbox::Error> {
    let since = Instant::now();
    loop {
        sandbox = match Arc::try_unwrap(sandbox) {
            Ok(sandbox) => return sandbox.close().await,
            Err(shared) => shared,
        };
        if since.elapsed() > SHARING_LIMIT {
            let what = "a sandbox that is still in use".to_owned();
            return Err(rollcage_sandbox::Error::Invalid { what });
        }
        tokio::time::sleep(SHARING_PAUSE).await;
    }
}
