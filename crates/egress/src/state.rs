//! State that all connections of one sandbox share: the current rules, the synthetic names, the audit log.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollcage_model::network::{
    Addresses, AttemptKind, AttemptVerdict, Host, Refusal, Rules, Target, Verdict,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::audit::{Decided, Journal, Meter};
use crate::limits::Limits;
use crate::names::{Names, is_synthetic};
use crate::outside::{Allowed, Outside, Unreachable};
use crate::socket::Life;

/// As many as a large installation fetches; they are asked for again after that.
const NAMED_MAX: usize = 4096;

/// The current phase of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Current {
    pub(crate) phase: &'static str,
    pub(crate) rules: Rules,
    /// Cancelled when the phase ends; resets its connections.
    pub(crate) end: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) outside: Outside,
    pub(crate) limits: Limits,
    pub(crate) journal: Journal,
    names: Mutex<Names>,
    /// Files that an index named lately, by host and path.
    named: Mutex<HashSet<(Target, String)>>,
    /// For one question at a time to an index: its pages can be large.
    pub(crate) asking: Semaphore,
    current: Mutex<Arc<Current>>,
}

impl State {
    pub(crate) fn new(outside: Outside, limits: Limits) -> Self {
        State {
            outside,
            limits,
            journal: Journal::default(),
            names: Mutex::default(),
            named: Mutex::default(),
            asking: Semaphore::new(1),
            current: Mutex::default(),
        }
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&lock(&self.current))
    }

    /// Replaces the rules, and resets the connections of the previous phase.
    pub(crate) fn enter(&self, phase: &'static str, rules: Rules) {
        let next = Arc::new(Current {
            phase,
            rules,
            end: CancellationToken::new(),
        });
        let last = std::mem::replace(&mut *lock(&self.current), next);
        last.end.cancel();
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// Whether an index is known to have named a file.
    pub(crate) fn is_named(&self, target: &Target, path: &str) -> bool {
        lock(&self.named).contains(&(target.clone(), path.to_owned()))
    }

    pub(crate) fn note_named(&self, target: &Target, path: &str) {
        let mut named = lock(&self.named);
        if named.len() >= NAMED_MAX {
            named.clear();
        }
        named.insert((target.clone(), path.to_owned()));
    }

    /// The target of a destination address; `None` for a synthetic address without a name.
    pub(crate) fn target(&self, address: SocketAddr) -> Option<Target> {
        let port = address.port();
        let host = match address.ip().to_canonical() {
            IpAddr::V4(inside) if is_synthetic(inside) => {
                Host::Name(self.names().name(inside)?.to_string())
            }
            address => Host::Ip(address),
        };
        Some(Target { host, port })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection from the sandbox, with the phase in which it was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) state: Arc<State>,
    pub(crate) current: Arc<Current>,
    pub(crate) life: Arc<Life>,
}

impl Connection {
    pub(crate) fn verdict(&self, target: &Target) -> Result<Addresses, Refusal> {
        match self.current.rules.verdict(target) {
            Verdict::Allowed { addresses } => Ok(addresses),
            Verdict::Refused(refusal) => Err(refusal),
        }
    }

    pub(crate) fn allowed_addresses(&self, addresses: Addresses) -> Allowed<'_> {
        Allowed {
            addresses,
            rules: &self.current.rules,
        }
    }

    pub(crate) fn refused(&self, kind: AttemptKind, target: &Target, reason: impl ToString) {
        let reason = Some(reason.to_string());
        self.note(kind, target, AttemptVerdict::Refused, reason);
    }

    pub(crate) fn allowed(&self, kind: AttemptKind, target: &Target) -> Meter {
        self.note(kind, target, AttemptVerdict::Allowed, None)
    }

    /// Records a client that closed an allowed connection before sending anything.
    pub(crate) fn abandoned(&self, target: &Target) {
        let reason = Some("the client went away at once".to_owned());
        let kind = AttemptKind::Connect;
        self.note(kind, target, AttemptVerdict::Allowed, reason);
    }

    pub(crate) fn unreachable(&self, kind: AttemptKind, target: &Target, error: &Unreachable) {
        let verdict = match error.is_refusal() {
            true => AttemptVerdict::Refused,
            false => AttemptVerdict::Allowed,
        };
        self.note(kind, target, verdict, Some(error.to_string()));
    }

    fn note(
        &self,
        kind: AttemptKind,
        target: &Target,
        verdict: AttemptVerdict,
        reason: Option<String>,
    ) -> Meter {
        self.state.journal.note(Decided {
            phase: self.current.phase,
            kind,
            host: target.host.to_string(),
            port: target.port,
            verdict,
            reason,
        })
    }

    /// The text of a 403: which rule is missing and how to add it.
    pub(crate) fn explain(&self, target: &Target, refusal: Refusal) -> String {
        let phase = match self.current.phase {
            "" => "agent",
            phase => phase,
        };
        let host = match target.port {
            80 | 443 => target.host.to_string(),
            _ => target.to_string(),
        };
        let remedy = match refusal {
            Refusal::NoNetwork => format!(
                "To allow it, run the task with --network {phase}={host}, or set network.{phase} = [\"{host}\"] in the task."
            ),
            Refusal::NotListed | Refusal::Port => {
                let place = match self.current.rules.is_open() {
                    true => "allow_hosts",
                    false => phase,
                };
                format!(
                    "To allow it, run the task with --allow-host {host}, or add \"{host}\" to network.{place} in the task."
                )
            }
            Refusal::Address(kind) if kind.is_never_listed() => "No rule can allow it.".to_owned(),
            Refusal::Address(_) => format!(
                "Only a rule for exactly this address allows it: --allow-host {host}, or network.allow_hosts in the task."
            ),
        };
        format!("{target} is refused in the {phase} phase: {refusal}. {remedy}\n")
    }
}
