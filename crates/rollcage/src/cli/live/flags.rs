//! Flags that several commands of live agents have.

use rollcage_model::live::PermissionPolicy;

use crate::server::live::SECONDS_MAX;

/// A limit or pause of a live agent.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.01..=SECONDS_MAX).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("must be between 0.01 and {SECONDS_MAX}")),
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum PermissionsName {
    /// Allow everything; nobody is there for questions
    Allow,
    /// Refuse everything
    Reject,
    /// Ask the caller, and refuse what nobody answers in time
    Ask,
}

impl From<PermissionsName> for PermissionPolicy {
    fn from(name: PermissionsName) -> Self {
        match name {
            PermissionsName::Allow => PermissionPolicy::Allow,
            PermissionsName::Reject => PermissionPolicy::Reject,
            PermissionsName::Ask => PermissionPolicy::Ask,
        }
    }
}
