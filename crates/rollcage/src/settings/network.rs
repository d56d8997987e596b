//! What this machine lets sandboxes reach: its package mirrors and proxies, and the hosts that its operator lists.

use std::collections::BTreeMap;

use rollcage_egress::{CompanyProxy, Credential, Outside};
use rollcage_engine::network::HostNetwork;
use rollcage_mirrors::{Host, Mirrors, machine};
use rollcage_model::network::{HostEntry, Presets, Rule, parse_hosts};

use super::variable;
use crate::UsageError;

/// Hosts that are listed for every task, by commas.
const LISTED: &str = "ROLLCAGE_ALLOW_HOSTS";

pub(crate) fn host_network() -> anyhow::Result<HostNetwork> {
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.into_string().ok()?))
    });
    let mirrors = rollcage_mirrors::of(&Host {
        env: &environment.collect::<BTreeMap<_, _>>(),
        read: &machine::read,
        list: &machine::list,
    });
    for problem in problems(&mirrors) {
        tracing::info!("for sandboxes: {problem}");
    }
    let (mut variables, mut files) = (mirrors.certificates.clone(), BTreeMap::new());
    for preset in mirrors.presets.values() {
        variables.extend(preset.env.clone());
        files.extend(preset.files.clone());
    }
    Ok(HostNetwork {
        listed: listed()?,
        presets: presets(&mirrors),
        outside: outside(&mirrors),
        variables,
        files,
        ..HostNetwork::default()
    })
}

fn problems(mirrors: &Mirrors) -> impl Iterator<Item = &String> {
    let presets = mirrors.presets.values();
    let of_presets = presets.flat_map(|preset| preset.refusals.iter().chain(&preset.notes));
    mirrors.notes.iter().chain(of_presets)
}

fn listed() -> anyhow::Result<Vec<HostEntry>> {
    let text = variable(LISTED).unwrap_or_default();
    let hosts = parse_hosts(&text);
    Ok(hosts.map_err(|error| UsageError(format!("{LISTED}: {error}")))?)
}

/// What cannot be read as a rule is no host that could be reached.
fn presets(mirrors: &Mirrors) -> Presets {
    let rules = |hosts: &[String]| -> Vec<Rule> {
        let parsed = hosts.iter().filter_map(|host| host.parse().ok());
        parsed.collect()
    };
    let presets = mirrors.presets.iter();
    presets
        .map(|(name, preset)| ((*name).to_owned(), rules(&preset.hosts)))
        .collect()
}

fn outside(mirrors: &Mirrors) -> Outside {
    let mut outside = Outside::default();
    if let Some(proxy) = &mirrors.outbound_proxy {
        let address = |secret: &Option<rollcage_mirrors::Secret>| {
            let secret = secret.as_ref().map(|secret| secret.expose().to_owned());
            secret.unwrap_or_default()
        };
        let parsed = CompanyProxy::parse(
            &address(&proxy.http),
            &address(&proxy.https),
            &proxy.no_proxy,
        );
        match parsed {
            Ok(company) => outside.company = company,
            Err(error) => {
                tracing::warn!(%error, "this machine's proxy cannot be used for sandboxes")
            }
        }
    }
    let credentials = mirrors
        .presets
        .values()
        .flat_map(|preset| &preset.credentials);
    outside.credentials = credentials.filter_map(credential).collect();
    outside
}

fn credential(found: &rollcage_mirrors::Credential) -> Option<Credential> {
    let mut authorization =
        hyper::header::HeaderValue::from_str(found.authorization.expose()).ok()?;
    authorization.set_sensitive(true);
    Some(Credential {
        host: rollcage_model::network::Host::parse(&found.host)?,
        port: found.port,
        authorization,
    })
}
