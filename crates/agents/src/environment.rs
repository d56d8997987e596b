//! The environment that processes in a sandbox start with.

use std::collections::BTreeMap;

use rollcage_sandbox::guest::{HOME, USER};

/// The initial environment of every process in a sandbox; nothing is inherited from our own.
pub fn base_environment(extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let fixed = [
        (
            "PATH",
            "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        ),
        ("HOME", HOME),
        ("USER", USER),
        ("LOGNAME", USER),
        ("SHELL", "/bin/bash"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ];
    let fixed = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    fixed
        .chain(
            extra
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_may_override_the_environment() {
        let extra = BTreeMap::from([("LANG".to_owned(), "de_DE.UTF-8".to_owned())]);
        assert_eq!(base_environment(&extra)["LANG"], "de_DE.UTF-8");
        assert_eq!(base_environment(&extra)["HOME"], "/home/user");
    }
}
