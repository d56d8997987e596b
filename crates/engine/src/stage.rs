//! A sandbox before its agent starts: the task's files, its setup commands, its services.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};
use rollcage_model::network;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::SetupUser;
use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{Sandbox, User};

use crate::environment;
use crate::feed::Feed;
use crate::history;
use crate::installed;
use crate::judge::Ending;
use crate::layout;
use crate::locale;
use crate::network::{HostNetwork, RolloutNetwork};
use crate::place::placements;
use crate::plan::Plan;
use crate::services::{self, ServiceError, Services};
use crate::shell::{run_command_as, seconds};
use crate::verify::CommandProgress;

/// A sandbox whose network is open.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) sandbox: &'a dyn Sandbox,
    pub(crate) network: &'a RolloutNetwork,
    pub(crate) host: &'a HostNetwork,
    pub(crate) plan: &'a Plan,
    pub(crate) feed: &'a Feed,
}

impl Stage<'_> {
    /// Writes the task files, then runs the setup commands one by one. The first failure ends the rollout before the
    /// agent starts. Afterwards the network is the agent's, and the services run.
    pub(crate) async fn prepare(
        &self,
        result: &mut RolloutResult,
        services: &mut Services,
    ) -> Result<(), Ending> {
        self.feed.publish(What::Entered {
            phase: Phase::Setup,
        });
        let since = Instant::now();
        let task = &self.plan.task;
        let files = layout::before_setup(self.plan)
            .map_err(|error| Ending::new(Cause::SetupFailed, error.to_string()))?;
        for placement in placements(files, 0o644) {
            let placement = placement.map_err(Ending::from_setup)?;
            let placed = placement.run(self.sandbox).await;
            placed.map_err(Ending::from_setup)?;
        }
        self.network
            .enter(network::Phase::Setup, self.sandbox)
            .await?;
        let env = self.environment(network::Phase::Setup);
        let (user, env) = match task.setup_user {
            SetupUser::User => (User::User, environment::of_setup(&env)),
            SetupUser::Root => (User::Root, environment::of_root(&env)),
        };
        let limit = Duration::from_secs_f64(task.command_timeout_s);
        if user == User::Root {
            installed::ready_system_packages(self.sandbox, self.host, &env, limit).await?;
        }
        let of = task.setup.len();
        for (index, command) in task.setup.iter().enumerate() {
            self.publish_command(Phase::Setup, index, of, CommandProgress::Started(command));
            let outcome =
                run_command_as(user, self.sandbox, command, env.clone(), WORKDIR, limit).await?;
            self.publish_command(Phase::Setup, index, of, CommandProgress::Ended(&outcome));
            let (code, is_late) = (outcome.exit_code, outcome.timed_out);
            result.setup_results.push(outcome);
            if code != 0 {
                let how = if is_late {
                    "timed out".to_owned()
                } else {
                    format!("exit {code}")
                };
                let text = format!("setup command failed ({how}): {command}");
                return Err(Ending::new(Cause::SetupFailed, text));
            }
        }
        if !task.setup.is_empty() {
            let undeclared = services::undeclared(self.sandbox).await?;
            result.findings.extend(undeclared);
        }
        self.network.shut();
        result
            .findings
            .extend(history::settle(self.sandbox, self.plan).await?);
        installed::settle(self.sandbox, task).await?;
        let missing = locale::check(self.sandbox, task).await?;
        result.findings.extend(missing);
        self.start_services(services).await?;
        result.timings.setup_s = seconds(since.elapsed());
        Ok(())
    }

    /// Enters the agent's network, since services live in it.
    pub(crate) async fn start_services(&self, services: &mut Services) -> Result<(), Ending> {
        self.network
            .enter(network::Phase::Agent, self.sandbox)
            .await?;
        let env = environment::of_setup(&self.environment(network::Phase::Agent));
        let started = services.start(self.sandbox, &env, WORKDIR).await;
        started.map_err(ServiceError::ending)
    }

    /// The task's variables, over those of a phase's network.
    pub(crate) fn environment(&self, phase: network::Phase) -> BTreeMap<String, String> {
        environment::of_task(self.network.variables(phase), &self.plan.task)
    }

    pub(crate) fn publish_command(
        &self,
        phase: Phase,
        index: usize,
        of: usize,
        progress: CommandProgress<'_>,
    ) {
        let number = index + 1;
        self.feed.publish(match progress {
            CommandProgress::Started(cmd) => What::CommandStarted {
                phase,
                number,
                of,
                cmd: cmd.to_owned(),
            },
            CommandProgress::Ended(outcome) => What::Command {
                phase,
                number,
                of,
                outcome: outcome.clone(),
            },
        });
    }
}
