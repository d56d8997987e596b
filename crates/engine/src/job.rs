//! A rollout before it runs: what was asked for, and how it becomes a plan.

use std::sync::Arc;

use futures::future::BoxFuture;

use rollcage_model::ending::Cause;
use rollcage_model::record::{AgentInfo, EndpointInfo};
use rollcage_model::task::Task;

use crate::PlanError;
use crate::judge::Ending;
use crate::rollout::Plan;
use rollcage_agents::WarmError;
use rollcage_proxy::outbound::ClientError;
use rollcage_scripted::Lease;

/// A rollout as it is asked for. What has to be fetched, started or looked up for it is its own first step.
pub(crate) struct Job {
    pub(crate) task: Task,
    pub(crate) owner: Option<String>,
    /// The same for all jobs that were asked for together.
    pub(crate) group: String,
    /// What is known of agent and endpoint before they are looked at.
    pub(crate) agent: AgentInfo,
    pub(crate) endpoint: EndpointInfo,
    pub(crate) plan: BoxFuture<'static, Result<Planned, PlanError>>,
}

/// A plan, and what must live as long as its rollout.
pub(crate) struct Planned {
    pub(crate) plan: Arc<Plan>,
    pub(crate) _script: Option<Lease>,
}

impl Job {
    pub(crate) fn of(plan: Arc<Plan>, group: String) -> Self {
        Job {
            task: plan.task.clone(),
            owner: None,
            group,
            agent: AgentInfo {
                name: plan.agent.name().to_owned(),
                version: plan.ready.bundle.version.clone(),
                ..AgentInfo::default()
            },
            endpoint: plan.endpoint.info(),
            plan: Box::pin(std::future::ready(Ok(Planned {
                plan,
                _script: None,
            }))),
        }
    }
}

impl From<PlanError> for Ending {
    fn from(error: PlanError) -> Self {
        let cause = match &error {
            PlanError::Warm(WarmError::Sandbox(_)) => Cause::SandboxFailed,
            PlanError::NoSolution => Cause::SetupFailed,
            PlanError::Endpoint(error) => error.cause(),
            PlanError::Serving(_) | PlanError::Client(ClientError::Forbidden(_)) => {
                Cause::EndpointUnreachable
            }
            PlanError::Install(_)
            | PlanError::Warm(_)
            | PlanError::Scripted(_)
            | PlanError::Http(_)
            | PlanError::Client(ClientError::Http(_)) => Cause::EngineFailed,
        };
        Ending::new(cause, rollcage_model::text::chain(&error))
    }
}
