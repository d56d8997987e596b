//! How this machine reaches package registries, and what sandboxes get of it.
//!
//! A machine behind a mirror says so in the settings of its tools: pip's, npm's, cargo's, apt's and git's variables and
//! files. [`of`] reads them and gives a [`Preset`] per tool: the hosts that have to be reachable, and the variables and files
//! that make the same tool inside ask the same mirror.
//!
//! Credentials never go inside. They are cut out of URLs and files, and stand apart in [`Preset::credentials`]: whoever
//! forwards a sandbox's plain http requests can add them there, to those that read packages ([`Reads`]). Inside TLS nobody can, so a mirror that wants a password over
//! https is a refusal in words. What cannot be read for certain (a URL with an `@` in its path, say) is left out, and notes
//! name the setting but never quote it.
//!
//! Reads only what it is given ([`Host`]); [`machine`] has the functions for the real one. Nothing is an error here: what is
//! missing is silence, what is broken is a note.

mod address;
mod apt;
mod cargo;
mod certificate;
mod git;
mod host;
mod ini;
pub mod machine;
mod netrc;
mod npm;
mod outbound;
mod pip;
mod preset;
mod provider;
mod reads;
mod secret;
mod shown;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use host::Host;
pub use outbound::OutboundProxy;
pub use preset::{Credential, Preset};
pub use reads::{Reading, Reads, Search};
pub use secret::Secret;

/// What sandboxes may be given of this machine's ways to the outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// By name, without the `@` that lists of hosts put before it.
    pub presets: BTreeMap<&'static str, Preset>,
    /// Variables for every phase with a network, whatever its presets: where certificate authorities are.
    pub certificates: BTreeMap<String, String>,
    /// The machine's own way out, if it has to go through a proxy. It is not for inside: the filter uses it.
    pub outbound_proxy: Option<OutboundProxy>,
    /// What was left out of the settings that all tools share, and why.
    pub notes: Vec<String>,
}

/// Reads a machine's settings.
pub fn of(host: &Host<'_>) -> Mirrors {
    let mut notes = Vec::new();
    let certificates = certificate::shared(host, &mut notes);
    let outbound_proxy = outbound::of_environment(host.env, &mut notes);
    let mut presets = provider::presets();
    presets.insert("pip", pip::preset(host));
    presets.insert("npm", npm::preset(host));
    presets.insert("cargo", cargo::preset(host));
    presets.insert("git", git::preset(host));
    if let Some(apt) = apt::preset(host) {
        presets.insert("apt", apt);
    }
    Mirrors {
        presets,
        certificates,
        outbound_proxy,
        notes,
    }
}
