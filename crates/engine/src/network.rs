//! A rollout's network: what each phase may reach, and the filter that holds the sandbox to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rollcage_egress::{Audit, Filter, Gates, Limits, Options, Outside};
use rollcage_model::ending::Cause;
use rollcage_model::finding::{Code, Finding};
use rollcage_model::network::{
    Attempt, AttemptTotals, AttemptVerdict, ClientRights, HostEntry, Network, NotForClients,
    Origin, Phase, Policy, Presets, Rules, UnknownPreset, restrict,
};
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_sandbox::{Content, Mount, PORTS_MAX, PROXY_PORT, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::judge::Ending;
use crate::store::NETWORK_FILE;

type Variables = BTreeMap<String, String>;

/// Presets that are part of `open`: a machine's package mirrors may have private addresses, which `open` does not reach.
const PACKAGES: [&str; 5] = ["pip", "npm", "cargo", "apt", "git"];
/// A host that the self-check asks for, and no list can have.
const NOT_LISTED: &str = "not-listed.invalid";
/// What the self-check reads of an answer.
const ANSWER_BYTES_MAX: u64 = 4096;

/// What this machine lets sandboxes reach, given to the engine from outside.
#[derive(Clone, Debug)]
pub struct HostNetwork {
    /// Listed for every task by whoever runs the program.
    pub listed: Vec<HostEntry>,
    pub presets: Presets,
    /// What package managers inside are told of the machine's mirrors and certificates, in phases with a network.
    pub variables: Variables,
    /// Files to the same end.
    pub layer: Option<Content>,
    pub system_packages: SystemPackages,
    pub outside: Outside,
    /// What clients of a server may ask for.
    pub client_rights: ClientRights,
}

/// What setup commands that run as root need to use the machine's package manager.
#[derive(Clone, Debug, Default)]
pub struct SystemPackages {
    pub mounts: Vec<Mount>,
    /// Run as root before the first setup command.
    pub command: Option<String>,
}

impl Default for HostNetwork {
    fn default() -> Self {
        HostNetwork {
            listed: Vec::new(),
            presets: Presets::default(),
            variables: Variables::default(),
            layer: None,
            system_packages: SystemPackages::default(),
            outside: Outside::default(),
            client_rights: ClientRights {
                may_open: true,
                may_drive: false,
            },
        }
    }
}

/// Why a task's network cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Preset(#[from] UnknownPreset),
    #[error(transparent)]
    Client(#[from] NotForClients),
    #[error("the hosts of `network` have {0} different ports, and at most {PORTS_MAX} can be used")]
    Ports(usize),
}

/// What each phase of one rollout may reach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseRules([Rules; 3]);

impl PhaseRules {
    /// Of a task's network; a client's is restricted first.
    pub(crate) fn resolve(
        network: &Network,
        origin: Origin,
        host: &HostNetwork,
    ) -> Result<PhaseRules, NetworkError> {
        let restricted;
        let network = match origin {
            Origin::Operator => network,
            Origin::Client => {
                restricted = restrict(network, &host.client_rights)?;
                &restricted
            }
        };
        let mut rules = Vec::new();
        for phase in Phase::ALL {
            let mut listed = host.listed.clone();
            if *network.policy(phase) == Policy::Open {
                let packages = PACKAGES
                    .iter()
                    .filter(|name| host.presets.contains_key(**name));
                listed.extend(packages.map(|name| HostEntry::Preset((*name).to_owned())));
            }
            rules.push(network.rules(phase, origin, &listed, &host.presets)?);
        }
        let rules = PhaseRules(rules.try_into().unwrap_or_default());
        let ports: BTreeSet<u16> = rules.0.iter().flat_map(Rules::ports).collect();
        match ports.len() {
            0..=PORTS_MAX => Ok(rules),
            count => Err(NetworkError::Ports(count)),
        }
    }

    fn of(&self, phase: Phase) -> &Rules {
        let [setup, agent, verify] = &self.0;
        match phase {
            Phase::Setup => setup,
            Phase::Agent => agent,
            Phase::Verify => verify,
        }
    }

    /// The ports to intercept; `None` when nothing of the task runs in a phase with a network.
    pub(crate) fn ports(&self, task: &Task) -> Option<Vec<u16>> {
        let runs = |phase: &Phase| match phase {
            Phase::Setup => !task.setup.is_empty(),
            Phase::Agent => true,
            Phase::Verify => task.has_verifier(),
        };
        let used = Phase::ALL
            .into_iter()
            .filter(runs)
            .map(|phase| self.of(phase));
        let used: Vec<&Rules> = used.filter(|rules| !rules.is_none()).collect();
        let ports: BTreeSet<u16> = used.iter().flat_map(|rules| rules.ports()).collect();
        (!used.is_empty()).then(|| ports.into_iter().collect())
    }
}

/// The network of a sandbox that runs. Until a phase is entered nothing is reached.
pub(crate) struct RolloutNetwork {
    rules: PhaseRules,
    variables: Variables,
    filter: Option<Filter>,
}

impl RolloutNetwork {
    /// Serves the sandbox's gates, if it has any.
    pub(crate) fn open(
        rules: PhaseRules,
        host: &HostNetwork,
        sandbox: &mut dyn Sandbox,
    ) -> Result<RolloutNetwork, Ending> {
        let filter = match sandbox.take_gates() {
            None => None,
            Some(gates) => {
                let filter = Filter::new(Options {
                    outside: host.outside.clone(),
                    limits: Limits::default(),
                });
                let served = filter.serve(Gates {
                    proxy: gates.proxy,
                    transparent: gates.intercepted,
                    dns: gates.dns,
                });
                served.map_err(|error| {
                    let text = format!("serve the sandbox's network: {error}");
                    Ending::new(Cause::EngineFailed, text)
                })?;
                Some(filter)
            }
        };
        Ok(RolloutNetwork {
            rules,
            variables: host.variables.clone(),
            filter,
        })
    }

    /// From now on this phase's rules hold. Where they are an allow-list, a host that is not on it is tried first, and must
    /// be refused.
    pub(crate) async fn enter(&self, phase: Phase, sandbox: &dyn Sandbox) -> Result<(), Ending> {
        let Some(filter) = &self.filter else {
            return Ok(());
        };
        let rules = self.rules.of(phase);
        filter.enter(phase.as_str(), rules.clone());
        if rules.is_allowlist() && !self.refuses_others(sandbox).await {
            let text = format!(
                "the network of the {} phase was tried with a host that is not listed, and did not refuse it",
                phase.as_str()
            );
            return Err(Ending::new(Cause::EngineFailed, text));
        }
        Ok(())
    }

    /// Nothing is reached any more.
    pub(crate) fn shut(&self) {
        if let Some(filter) = &self.filter {
            filter.enter("", Rules::default());
        }
    }

    /// Asks for a host that no list can have, the way a program inside would.
    async fn refuses_others(&self, sandbox: &dyn Sandbox) -> bool {
        let question =
            format!("CONNECT {NOT_LISTED}:443 HTTP/1.1\r\nHost: {NOT_LISTED}:443\r\n\r\n");
        let ask = async {
            let mut stream = sandbox.connect(PROXY_PORT).await.ok()?;
            stream.write_all(question.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            let mut start = stream.take(ANSWER_BYTES_MAX);
            while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
                if start.read_buf(&mut answer).await.ok()? == 0 {
                    break;
                }
            }
            Some(answer)
        };
        let limit = std::time::Duration::from_secs(10);
        let answer = tokio::time::timeout(limit, ask).await;
        answer.is_ok_and(|answer| answer.is_some_and(|it| it.starts_with(b"HTTP/1.1 403")))
    }

    /// What programs have to know to get through in this phase.
    pub(crate) fn variables(&self, phase: Phase) -> Variables {
        if self.filter.is_none() || self.rules.of(phase).is_none() {
            return Variables::new();
        }
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        let here = "127.0.0.1,localhost".to_owned();
        let names = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
        let proxies = names.map(|name| (name.to_owned(), proxy.clone()));
        let others = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), here.clone()));
        let mut variables = self.variables.clone();
        variables.extend(proxies.into_iter().chain(others));
        variables
    }

    /// Cuts what is open, and keeps a log of every attempt with the record.
    pub(crate) async fn close(self, record: &Path, result: &mut RolloutResult) {
        let Some(filter) = self.filter else { return };
        filter.close().await;
        let audit = without_self_checks(filter.audit());
        for (phase, totals) in &audit.totals {
            let sum = result.network.entry((*phase).to_owned()).or_default();
            *sum = sum.plus(totals);
        }
        result.findings.extend(refusals(&audit));
        let path = record.join(NETWORK_FILE);
        let written = tokio::task::spawn_blocking(move || write(&path, &audit)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "the log of a rollout's network is not written");
        }
    }
}

/// Nobody inside made these attempts.
fn without_self_checks(mut audit: Audit) -> Audit {
    let is_ours = |attempt: &Attempt| attempt.host == NOT_LISTED;
    for attempt in audit.attempts.iter().filter(|attempt| is_ours(attempt)) {
        let of_phase = audit.totals.iter_mut();
        for (_, totals) in of_phase.filter(|(phase, _)| **phase == attempt.phase) {
            totals.attempts = totals.attempts.saturating_sub(1);
            totals.refused = totals.refused.saturating_sub(1);
        }
    }
    audit.attempts.retain(|attempt| !is_ours(attempt));
    audit
        .totals
        .retain(|_, totals| *totals != AttemptTotals::default());
    audit
}

/// What was refused, in a sentence.
fn refusals(audit: &Audit) -> Option<Finding> {
    const SHOWN: usize = 3;
    let attempts = audit.attempts.iter();
    let refused = attempts
        .filter(|attempt| attempt.verdict == AttemptVerdict::Refused && attempt.host != NOT_LISTED);
    let hosts: BTreeSet<String> = refused
        .map(|attempt| match attempt.port {
            0 => format!("{} ({})", attempt.host, attempt.phase),
            port => format!("{}:{port} ({})", attempt.host, attempt.phase),
        })
        .collect();
    let some: Vec<&str> = hosts.iter().take(SHOWN).map(String::as_str).collect();
    let more = hosts.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!(" and {more} more"));
    let text = format!(
        "not allowed, and refused: {}{}; {NETWORK_FILE} of the record has every attempt, --network and --allow-host change \
         what is allowed",
        some.join(", "),
        more.unwrap_or_default()
    );
    (!hosts.is_empty()).then(|| Finding::info(Code::NetworkRefused, text))
}

fn write(path: &Path, audit: &Audit) -> io::Result<()> {
    // A live agent has several sandboxes, one after the other.
    let mut options = std::fs::File::options();
    let options = options.append(true).create(true).mode(0o600);
    let mut lines = io::BufWriter::new(options.open(path)?);
    for attempt in &audit.attempts {
        serde_json::to_writer(&mut lines, attempt)?;
        lines.write_all(b"\n")?;
    }
    lines.flush()
}

#[cfg(test)]
mod tests;
