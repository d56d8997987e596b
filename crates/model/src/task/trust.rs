//! What of the agent's a task's verify commands obey all the same.

use serde::{Deserialize, Serialize};

/// Something of the agent's that could decide how its work is checked.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VerifyTrust {
    /// HOME is `/home/user` itself, with the agent's start files and settings.
    Home,
    /// Python imports the agent's modules in the usual order, and takes the bytecode that it left.
    Modules,
    /// pytest takes settings and plugins from everywhere, for tests of the verifier too.
    Pytest,
    /// git obeys the repository's whole configuration. Hooks are not part of it.
    Git,
    /// git runs hooks.
    Hooks,
}

impl VerifyTrust {
    pub const ALL: [VerifyTrust; 5] = [
        VerifyTrust::Home,
        VerifyTrust::Modules,
        VerifyTrust::Pytest,
        VerifyTrust::Git,
        VerifyTrust::Hooks,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            VerifyTrust::Home => "home",
            VerifyTrust::Modules => "modules",
            VerifyTrust::Pytest => "pytest",
            VerifyTrust::Git => "git",
            VerifyTrust::Hooks => "hooks",
        }
    }
}
