//! Hosts of model providers, for agents that must reach a hosted API themselves. No settings belong to them.

use std::collections::BTreeMap;

use crate::preset::Preset;

/// Named like the endpoints that the program knows.
const PROVIDERS: [(&str, &[&str]); 15] = [
    ("anthropic", &["api.anthropic.com"]),
    ("cerebras", &["api.cerebras.ai"]),
    ("deepinfra", &["api.deepinfra.com"]),
    ("deepseek", &["api.deepseek.com"]),
    ("fireworks", &["api.fireworks.ai"]),
    ("gemini", &["generativelanguage.googleapis.com"]),
    ("groq", &["api.groq.com"]),
    ("hf_router", &["router.huggingface.co", "huggingface.co"]),
    ("mistral", &["api.mistral.ai"]),
    ("moonshot", &["api.moonshot.ai"]),
    ("nvidia", &["integrate.api.nvidia.com"]),
    ("openai", &["api.openai.com"]),
    ("openrouter", &["openrouter.ai"]),
    ("together", &["api.together.xyz", "api.together.ai"]),
    ("xai", &["api.x.ai"]),
];

pub(crate) fn presets() -> BTreeMap<&'static str, Preset> {
    let preset = |hosts: &[&str]| Preset {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        ..Preset::default()
    };
    PROVIDERS
        .iter()
        .map(|(name, hosts)| (*name, preset(hosts)))
        .collect()
}
