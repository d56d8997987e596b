//! The sandbox of a rollout: one that stands ready, or a new one.

use std::sync::Arc;

use rollcage_sandbox::Sandbox;

use crate::context::Context;
use crate::drive::serve::ServedAgent;
use crate::feed::Feed;
use crate::judge::Ending;
use crate::layout::spec;
use crate::model::OpenEntrance;
use crate::network::RolloutNetwork;
use crate::plan::Plan;
use crate::warm::WarmSandbox;

/// A sandbox with what is opened together with it.
pub(crate) struct StartedSandbox {
    pub(crate) sandbox: Arc<Box<dyn Sandbox>>,
    pub(crate) entrance: OpenEntrance,
    pub(crate) network: RolloutNetwork,
    /// The key of the session that the agent's configuration names already.
    pub(crate) key: Option<String>,
    /// The agent's server, where it runs already.
    pub(crate) served: Option<ServedAgent>,
}

impl StartedSandbox {
    pub(crate) async fn get(
        cx: &Context,
        plan: &Arc<Plan>,
        context_tokens: Option<u64>,
        feed: &Feed,
    ) -> Result<Self, Ending> {
        if let Some(warm) = cx.warm.take(plan, context_tokens) {
            return Ok(warm.into());
        }
        let host = &*cx.preparer.catalogue.network;
        let mut sandbox = cx.sandboxes.start(spec(feed.rollout(), plan, host)).await?;
        let entrance = OpenEntrance::open(&mut *sandbox)?;
        let network = RolloutNetwork::open(plan.network.clone(), host, &mut *sandbox)?;
        Ok(StartedSandbox {
            sandbox: Arc::new(sandbox),
            entrance,
            network,
            key: None,
            served: None,
        })
    }
}

impl From<WarmSandbox> for StartedSandbox {
    fn from(warm: WarmSandbox) -> Self {
        StartedSandbox {
            sandbox: warm.sandbox,
            entrance: warm.entrance,
            network: warm.network,
            key: Some(warm.key),
            served: Some(warm.served),
        }
    }
}
