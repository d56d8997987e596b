//! The environment of each phase: where programs are found, and where packages are installed to and imported from.
//!
//! Setup commands install into [`SETUP`], which is read-only once they are done. The agent installs into its home. Verify
//! commands find what setup installed first, and the agent's packages behind it.

use std::collections::BTreeMap;

use rollcage_agents::base_environment;
use rollcage_model::task::{Task, VerifyTrust};
use rollcage_sandbox::guest::{
    ALIASES, HOME, PYTHON_BASE, SETUP, VERIFY_BIN, VERIFY_GIT_CONFIG, VERIFY_HOME, VERIFY_PYTHON,
};

type Variables = BTreeMap<String, String>;

/// Where Python looks for modules first.
const PYTHONPATH: &str = "PYTHONPATH";
const SYSTEM: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The task's variables, over those of a phase's network.
pub(crate) fn of_task(mut network: Variables, task: &Task) -> Variables {
    network.extend(task.place_variables());
    network.extend(task.env.clone());
    network
}

/// For setup commands, with the task's own variables on top.
pub(crate) fn of_setup(extra: &Variables) -> Variables {
    let path = format!("{SETUP}/bin:{SYSTEM}:{HOME}/.local/bin:{ALIASES}");
    let fixed = [
        ("PATH", path),
        ("PYTHONUSERBASE", SETUP.to_owned()),
        ("NPM_CONFIG_PREFIX", SETUP.to_owned()),
        ("CARGO_INSTALL_ROOT", SETUP.to_owned()),
        ("UV_TOOL_DIR", format!("{SETUP}/uv/tools")),
        ("UV_TOOL_BIN_DIR", format!("{SETUP}/bin")),
        ("UV_PYTHON_INSTALL_DIR", format!("{SETUP}/uv/python")),
    ];
    join(fixed, extra)
}

/// For setup commands that run as root: what they install is the system's, which nobody else inside can change.
pub(crate) fn of_root(extra: &Variables) -> Variables {
    let fixed = [
        ("PATH", format!("{SYSTEM}:{ALIASES}")),
        ("HOME", "/root".to_owned()),
        ("USER", "root".to_owned()),
        ("LOGNAME", "root".to_owned()),
        ("DEBIAN_FRONTEND", "noninteractive".to_owned()),
    ];
    join(fixed, extra)
}

/// For the agent, whose own variables come on top of the task's.
pub(crate) fn of_agent(extra: &Variables) -> Variables {
    let path = format!("{HOME}/.local/bin:{SETUP}/bin:{SYSTEM}:{ALIASES}");
    let fixed = [
        ("PATH", path),
        ("NPM_CONFIG_PREFIX", format!("{HOME}/.local")),
        ("CARGO_INSTALL_ROOT", format!("{HOME}/.local")),
    ];
    join(fixed, extra)
}

/// For verify commands: nothing of the agent's is found before anything else, and none of its code runs by itself. `modules`
/// are names of Python modules that the author's texts have.
pub(crate) fn of_verify(extra: &Variables, trust: &[VerifyTrust], modules: &str) -> Variables {
    let path = format!("{VERIFY_BIN}:{SETUP}/bin:{SYSTEM}:{ALIASES}:{HOME}/.local/bin");
    let home = match trust.contains(&VerifyTrust::Home) {
        true => HOME,
        false => VERIFY_HOME,
    };
    let trust: Vec<&str> = trust.iter().map(|trust| trust.as_str()).collect();
    let fixed = [
        ("PATH", path),
        ("HOME", home.to_owned()),
        ("PYTHONUSERBASE", PYTHON_BASE.to_owned()),
        (PYTHONPATH, VERIFY_PYTHON.to_owned()),
        ("ROLLCAGE_VERIFY_MODULES", modules.to_owned()),
        ("ROLLCAGE_VERIFY_TRUST", trust.join(",")),
        ("GIT_CONFIG_SYSTEM", VERIFY_GIT_CONFIG.to_owned()),
        // Of a project's .npmrc. npm takes an empty variable for none.
        ("NPM_CONFIG_SCRIPT_SHELL", "/bin/sh".to_owned()),
        ("NPM_CONFIG_NODE_OPTIONS", " ".to_owned()),
    ];
    let mut all = join(fixed, extra);
    if let Some(own) = extra.get(PYTHONPATH) {
        all.insert(PYTHONPATH.to_owned(), format!("{VERIFY_PYTHON}:{own}"));
    }
    all
}

fn join<const N: usize>(fixed: [(&str, String); N], extra: &Variables) -> Variables {
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value));
    // A sandbox is nobody's system: what is installed in it is gone with it.
    let pip = ("PIP_BREAK_SYSTEM_PACKAGES".to_owned(), "1".to_owned());
    let all = fixed.into_iter().chain([pip]).chain(extra.clone());
    base_environment(&all.collect())
}
