//! What this machine lets sandboxes reach: its package mirrors and proxies, and the hosts that its operator lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollcage_egress::{CompanyProxy, Credential, Outside};
use rollcage_engine::network::{HostNetwork, SystemPackages};
use rollcage_mirrors::{Host, Mirrors, machine};
use rollcage_model::network::{HostEntry, Presets, Rule, parse_hosts};

use rollcage_sandbox::{Archive, Content, Mount};

use super::variable;
use crate::UsageError;

/// Hosts that are listed for every task, by commas.
const LISTED: &str = "ROLLCAGE_ALLOW_HOSTS";

/// How this machine reaches package registries.
pub(crate) fn mirrors() -> Mirrors {
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.into_string().ok()?))
    });
    rollcage_mirrors::of(&Host {
        env: &environment.collect::<BTreeMap<_, _>>(),
        read: &machine::read,
        list: &machine::list,
    })
}

pub(crate) fn host_network() -> anyhow::Result<HostNetwork> {
    let mirrors = mirrors();
    for problem in problems(&mirrors) {
        tracing::info!("for sandboxes: {problem}");
    }
    let mut variables = mirrors.certificates.clone();
    for preset in mirrors.presets.values() {
        variables.extend(preset.env.clone());
    }
    Ok(HostNetwork {
        listed: listed()?,
        presets: presets(&mirrors),
        outside: outside(&mirrors),
        variables,
        layer: layer(&mirrors),
        system_packages: system_packages(),
        ..HostNetwork::default()
    })
}

/// The files that package managers inside need, as one archive.
fn layer(mirrors: &Mirrors) -> Option<Content> {
    let presets = || mirrors.presets.values();
    let texts = presets().flat_map(|preset| &preset.files);
    let texts = texts.map(|(path, text)| (PathBuf::from(path), text.clone().into_bytes()));
    let copies = presets().flat_map(|preset| &preset.copies);
    let copies = copies.filter_map(|path| Some((path.clone(), std::fs::read(path).ok()?)));
    let files: BTreeMap<PathBuf, Vec<u8>> = texts.chain(copies).collect();
    if files.is_empty() {
        return None;
    }
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let inner = path.strip_prefix("/").unwrap_or(&path);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // Writing to memory does not fail; a name that tar cannot hold is left out.
        let _ = archive.append_data(&mut header, inner, content.as_slice());
    }
    let bytes = archive.into_inner().ok()?;
    Some(Content::Archive(Archive::Bytes(bytes.into())))
}

/// dpkg's list of what is in `/usr`, without which nothing can be added to it.
fn system_packages() -> SystemPackages {
    const STATE: &str = "/var/lib/dpkg";
    if !Path::new(STATE).join("status").is_file() {
        return SystemPackages::default();
    }
    SystemPackages {
        mounts: vec![Mount {
            content: Content::HostTree(STATE.into()),
            target: "/opt/rollcage/dpkg".into(),
        }],
        command: Some(include_str!("ready_dpkg.sh").to_owned()),
    }
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
        path: found.path.clone(),
        reads: found.reads.clone(),
        authorization,
    })
}
