//! A task's network settings: a policy for each phase and an allow-list of hosts. Pure; `rollcage-egress` enforces
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub mod address;
mod attempt;
mod rule;
mod verdict;

pub use attempt::{Attempt, AttemptKind, AttemptTotals, AttemptVerdict};
pub use rule::{HostEntry, HostRule, NotAHost, Rule};
use verdict::Grant;
pub use verdict::{
    Addresses, Host, OPEN_PORTS, Refusal, Rules, Target, Verdict, WEB_PORTS, check_address,
};

/// The preset whose hosts are also reachable by ssh and git's own protocol.
const GIT: &str = "git";

/// The hosts of each preset on this machine, by name without `@`.
pub type Presets = BTreeMap<String, Vec<Rule>>;

/// The phases of a rollout, each with its own network policy.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Setup,
    Agent,
    Verify,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Setup, Phase::Agent, Phase::Verify];

    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Setup => "setup",
            Phase::Agent => "agent",
            Phase::Verify => "verify",
        }
    }
}

/// An unknown phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no phase: give setup, agent or verify")]
pub struct NotAPhase(String);

impl FromStr for Phase {
    type Err = NotAPhase;

    fn from_str(text: &str) -> Result<Self, NotAPhase> {
        let mut all = Phase::ALL.into_iter();
        let found = all.find(|phase| phase.as_str() == text.trim());
        found.ok_or_else(|| NotAPhase(text.to_owned()))
    }
}

/// Network access by phase. The model is always reachable, through the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// While setup commands run; `open` when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<Policy>,
    /// While the agent runs; `none` when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Policy>,
    /// While verify commands run; `none` when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Policy>,
    /// Added to every phase whose policy is not `none`. For `open`, this is where other ports and private hosts are
    /// listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<HostEntry>,
}

/// The network policy of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    None,
    /// TCP ports 80, 443, 22 and 9418 of public addresses, and the hosts in `allow_hosts`.
    Open,
    /// These hosts, and those in `allow_hosts`.
    Allowlist(Vec<HostEntry>),
}

static OPEN: Policy = Policy::Open;
static NONE: Policy = Policy::None;

/// Who wrote the task, which decides whether its rules may lead to private addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whoever runs the program.
    Operator,
    /// A client of the server.
    Client,
}

/// A preset that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no preset `@{name}`: known are {known}")]
pub struct UnknownPreset {
    name: String,
    known: String,
}

impl Network {
    pub fn is_default(&self) -> bool {
        *self == Network::default()
    }

    pub fn policy(&self, phase: Phase) -> &Policy {
        match phase {
            Phase::Setup => self.setup.as_ref().unwrap_or(&OPEN),
            Phase::Agent => self.agent.as_ref().unwrap_or(&NONE),
            Phase::Verify => self.verify.as_ref().unwrap_or(&NONE),
        }
    }

    pub fn set(&mut self, phase: Phase, policy: Policy) {
        let place = match phase {
            Phase::Setup => &mut self.setup,
            Phase::Agent => &mut self.agent,
            Phase::Verify => &mut self.verify,
        };
        *place = Some(policy);
    }

    /// The rules of a phase. `listed` are the operator's hosts for all tasks; like `allow_hosts`, they have no effect
    /// in a phase with the policy `none`.
    pub fn rules(
        &self,
        phase: Phase,
        origin: Origin,
        listed: &[HostEntry],
        presets: &Presets,
    ) -> Result<Rules, UnknownPreset> {
        let (is_open, own): (bool, &[HostEntry]) = match self.policy(phase) {
            Policy::None => return Ok(Rules::default()),
            Policy::Open => (true, &[]),
            Policy::Allowlist(own) => (false, own),
        };
        let of_task = own.iter().chain(&self.allow_hosts);
        let of_task = of_task.map(|entry| (entry, origin));
        let of_operator = listed.iter().map(|entry| (entry, Origin::Operator));
        let mut grants = Vec::new();
        for (entry, origin) in of_task.chain(of_operator) {
            grants.extend(granted(entry, origin, presets)?);
        }
        Ok(Rules { is_open, grants })
    }

    /// The entries of all phases.
    fn entries(&self) -> impl Iterator<Item = &HostEntry> {
        let policies = [&self.setup, &self.agent, &self.verify];
        let own = policies
            .into_iter()
            .flatten()
            .flat_map(|policy| match policy {
                Policy::Allowlist(own) => own.as_slice(),
                Policy::None | Policy::Open => &[],
            });
        own.chain(&self.allow_hosts)
    }
}

fn granted(
    entry: &HostEntry,
    origin: Origin,
    presets: &Presets,
) -> Result<Vec<Grant>, UnknownPreset> {
    let grant = |rule: &Rule, usual: &[u16]| Grant {
        host: rule.host.clone(),
        ports: rule.port.map_or_else(|| usual.to_vec(), |port| vec![port]),
        addresses: match (&rule.host, origin) {
            // The owner of a domain decides what its subdomains resolve to.
            (HostRule::Below(_), _) | (_, Origin::Client) => Addresses::Public,
            (HostRule::Exactly(_) | HostRule::Within(_), Origin::Operator) => Addresses::Listed,
        },
    };
    match entry {
        HostEntry::Rule(rule) => Ok(vec![grant(rule, &WEB_PORTS)]),
        HostEntry::Preset(name) => {
            let Some(rules) = presets.get(name) else {
                let known: Vec<String> = presets.keys().map(|name| format!("@{name}")).collect();
                return Err(UnknownPreset {
                    name: name.clone(),
                    known: known.join(", "),
                });
            };
            let usual: &[u16] = if name == GIT { &OPEN_PORTS } else { &WEB_PORTS };
            Ok(rules.iter().map(|rule| grant(rule, usual)).collect())
        }
    }
}

/// What the clients of a server may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRights {
    /// Whether the policy `open` is allowed.
    pub may_open: bool,
    /// Whether a task of the operator's keeps its network when a client brings the model that drives it, or talks to its
    /// agent.
    pub may_drive: bool,
}

/// Why a client's network settings are rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForClients {
    #[error(
        "`network.{phase}`: this server does not allow \"open\" to its clients: list the hosts that are needed, or say \
         \"none\""
    )]
    Open { phase: &'static str },
    #[error(
        "`{rule}` has {kind} address, which clients of this server may not list: only who runs it can, with --allow-host"
    )]
    Address { rule: String, kind: &'static str },
}

/// Checks the network settings of a server's client. Where `open` is not allowed, it is not the default either: an
/// unset `setup` becomes an empty allow-list, to which the operator's hosts are added. Call [`Network::rules`] with
/// [`Origin::Client`] on the result.
pub fn restrict(network: &Network, rights: &ClientRights) -> Result<Network, NotForClients> {
    for entry in network.entries() {
        if let HostEntry::Rule(rule) = entry
            && let HostRule::Within(block) = &rule.host
            && let Some(kind) = block.closed_kind()
        {
            return Err(NotForClients::Address {
                rule: rule.to_string(),
                kind: kind.as_str(),
            });
        }
    }
    let mut network = network.clone();
    if rights.may_open {
        return Ok(network);
    }
    if network.setup.is_none() {
        network.setup = Some(Policy::Allowlist(Vec::new()));
    }
    let mut phases = Phase::ALL.into_iter();
    match phases.find(|phase| *network.policy(*phase) == Policy::Open) {
        Some(phase) => Err(NotForClients::Open {
            phase: phase.as_str(),
        }),
        None => Ok(network),
    }
}

impl FromStr for Policy {
    type Err = NotAHost;

    /// As in `--network PHASE=POLICY`: a keyword, or a comma-separated list of hosts.
    fn from_str(text: &str) -> Result<Self, NotAHost> {
        match Policy::from_word(text.trim()) {
            Some(policy) => Ok(policy),
            None => Ok(Policy::Allowlist(parse_hosts(text)?)),
        }
    }
}

/// Parses a comma-separated list of hosts.
pub fn parse_hosts(text: &str) -> Result<Vec<HostEntry>, NotAHost> {
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::parse)
        .collect()
}

impl Policy {
    fn from_word(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Policy::None),
            "open" => Some(Policy::Open),
            "allowlist" => Some(Policy::Allowlist(Vec::new())),
            _ => None,
        }
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Policy::None => serializer.serialize_str("none"),
            Policy::Open => serializer.serialize_str("open"),
            Policy::Allowlist(hosts) if hosts.is_empty() => serializer.serialize_str("allowlist"),
            Policy::Allowlist(hosts) => serializer.collect_seq(hosts),
        }
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PolicyVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("\"none\", \"open\", \"allowlist\" or a list of hosts")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Policy, E> {
        let unknown = || E::invalid_value(de::Unexpected::Str(word), &self);
        Policy::from_word(word).ok_or_else(unknown)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Policy, A::Error> {
        let mut hosts = Vec::new();
        while let Some(entry) = entries.next_element()? {
            hosts.push(entry);
        }
        Ok(Policy::Allowlist(hosts))
    }
}

impl schemars::JsonSchema for Policy {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Policy".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let hosts = generator.subschema_for::<Vec<HostEntry>>();
        schemars::json_schema!({
            "description": "What one phase may reach; `allowlist` is what is listed for all phases.",
            "anyOf": [{ "enum": ["none", "open", "allowlist"] }, hosts],
        })
    }
}

#[cfg(test)]
mod tests;
