//! npm: its variables and `.npmrc`, which pnpm, Bun and Yarn 1 read as well. Later Yarns and Corepack get variables of their
//! own. A project's `.npmrc` is the task's business and not read here.

mod npmrc;
mod settings;

#[cfg(test)]
mod tests;

use crate::address::Address;
use crate::host::Host;
use crate::preset::Preset;
use crate::reads::Reads;

use settings::Settings;

const PUBLIC: &str = "registry.npmjs.org";
/// The same registry by the name that Yarn asks unless it is told otherwise.
const YARN: &str = "registry.yarnpkg.com";
/// Where `.npmrc` stands inside.
const INSIDE: &str = "/home/user/.npmrc";
/// Who is told of the registry by a variable.
const REGISTRY_VARIABLES: [&str; 3] = [
    "NPM_CONFIG_REGISTRY",
    "YARN_NPM_REGISTRY_SERVER",
    "COREPACK_NPM_REGISTRY",
];

pub(crate) fn preset(host: &Host<'_>) -> Preset {
    let mut preset = Preset::default();
    let settings = Settings::read(host, &mut preset);
    let mut registries = Vec::new();
    let mut lines = String::new();
    let default = settings.one("registry").and_then(|(setting, url)| {
        let address = preset.needed_address(setting, url)?;
        Some((setting.to_owned(), address))
    });
    match default {
        Some((setting, address)) => {
            for name in REGISTRY_VARIABLES {
                // Yarn and Corepack want no slash at the end, and npm does without.
                preset.set(name, address.text.trim_end_matches('/'));
            }
            if !address.is_encrypted {
                preset.set("YARN_UNSAFE_HTTP_WHITELIST", &address.host);
            }
            registries.push((setting, address));
        }
        None => {
            preset.allow(PUBLIC);
            preset.allow(YARN);
        }
    }
    for (scope, setting, url) in settings.scopes() {
        if let Some(address) = preset.needed_address(setting, url) {
            lines.push_str(&format!("{scope}:registry={}\n", address.text));
            registries.push((setting.to_owned(), address));
        }
    }
    for (setting, address) in &registries {
        reach(setting, address, &settings, &mut preset);
    }
    others(&settings, &mut lines, &mut preset);
    if !lines.is_empty() {
        preset.files.insert(INSIDE.to_owned(), lines);
    }
    preset
}

/// A registry with its credentials; what settings hold for other hosts is of no use here.
fn reach(setting: &str, address: &Address, settings: &Settings, preset: &mut Preset) {
    let reads = Reads::Npm(address.folder());
    preset.reach(setting, address, reads.clone());
    for (path, authorization) in settings.authorizations(address) {
        if address.host == PUBLIC {
            // Everyone who publishes has one, and reads without.
            preset.note(format!(
                "a credential for {PUBLIC} stays outside: private packages are out of reach"
            ));
        } else {
            preset.authorize(setting, address, &path, reads.clone(), authorization);
        }
    }
}

/// What is neither registry nor credential.
fn others(settings: &Settings, lines: &mut String, preset: &mut Preset) {
    if let Some((setting, path)) = settings.one("cafile") {
        preset.set_certificate("NPM_CONFIG_CAFILE", setting, path);
    }
    for text in &settings.authorities {
        // npm's own files have a certificate's lines as \n in quotes.
        let is_public =
            text.starts_with("-----BEGIN CERTIFICATE-----") && !text.contains("PRIVATE KEY");
        let is_plain = |letter: char| {
            letter == '\n'
                || (letter.is_ascii_graphic() && !matches!(letter, '"' | '\\'))
                || letter == ' '
        };
        let text = text.replace('\r', "");
        match is_public && text.chars().all(is_plain) {
            true => lines.push_str(&format!(
                "ca[]=\"{}\"\n",
                text.trim_end().replace('\n', "\\n")
            )),
            false => preset.note("npm's ca holds something that is no certificate: it is left out"),
        }
    }
    if let Some((_, "false")) = settings.one("strict-ssl") {
        preset.set("NPM_CONFIG_STRICT_SSL", "false");
    }
    for key in ["fetch-timeout", "fetch-retries"] {
        if let Some((_, value)) = settings.one(key)
            && value.parse::<u32>().is_ok()
        {
            let name = key.to_uppercase().replace('-', "_");
            preset.set(&format!("NPM_CONFIG_{name}"), value);
        }
    }
    if settings.has_client_key {
        preset.refuse("npm's settings have a client certificate with its private key, which does not enter sandboxes");
    }
    // npm sends everything through `https-proxy`, or else `proxy`, whatever the scheme.
    let no_proxy = settings.one("noproxy").map_or("", |(_, value)| value);
    for key in ["https-proxy", "proxy"] {
        if let Some((setting, text)) = settings.one(key) {
            preset.set_proxy(setting, text, no_proxy);
        }
    }
}
