//! Paths and users that are the same in every sandbox.

/// The unprivileged user that agents run as.
pub const USER: &str = "user";
/// Its uid and gid.
pub const USER_ID: u32 = 1000;
/// The user's home directory.
pub const HOME: &str = "/home/user";
/// The agent's work directory.
pub const WORKDIR: &str = "/home/user/workdir";
/// Task files that are not part of the work directory.
pub const TASK_DIR: &str = "/home/user/task";
/// Holds [`AGENT_LOGS`] and [`VERIFIER_LOGS`].
pub const LOGS: &str = "/home/user/logs";
/// Logs of the agent, readable by verifiers.
pub const AGENT_LOGS: &str = "/home/user/logs/agent";
/// Logs of the verifier, which may hold the reward. Read-only until [`crate::Sandbox::unseal`].
pub const VERIFIER_LOGS: &str = "/home/user/logs/verifier";
/// The verifier's tests. Empty and read-only until [`crate::Sandbox::unseal`], so that an agent cannot place anything
/// there.
pub const TESTS: &str = "/home/user/tests";
/// Where setup commands install packages and programs: theirs until [`crate::Sandbox::seal_setup`], read-only after it.
pub const SETUP: &str = "/opt/setup";
/// `PYTHONUSERBASE` for commands that are to import what setup installed first, and what the agent installed last. Of the
/// agent's packages no `.pth` file is run, since those hold code.
pub const PYTHON_BASE: &str = "/opt/rollcage/python";
/// What only verify commands use.
pub const VERIFY: &str = "/opt/rollcage/verify";
/// HOME of verify commands: a directory of its own, made anew for each of them, so that nothing that the agent or an
/// earlier command left there has a say.
pub const VERIFY_HOME: &str = "/opt/rollcage/verify/home";
/// Programs for verify commands, found before all others.
pub const VERIFY_BIN: &str = "/opt/rollcage/verify/bin";
/// Runs a command as the agent would run it. Only there for verify commands.
pub const AS_AGENT: &str = "/opt/rollcage/verify/bin/as-agent";
/// Where [`AS_AGENT`] asks for that, on the socket [`AS_AGENT_SOCKET`].
pub const VERIFY_RUN: &str = "/opt/rollcage/verify/run";
pub const AS_AGENT_SOCKET: &str = "as-agent";
/// The entries of [`HOME`] whose names begin with a dot, as they were when setup ended. Read-only for the agent.
pub const KEPT_HOME: &str = "/opt/setup/.home";
/// Modules of ours that a verify command's Python loads first.
pub const VERIFY_PYTHON: &str = "/opt/rollcage/verify/python";
/// Settings of git that all others come before.
pub const VERIFY_GIT_CONFIG: &str = "/opt/rollcage/verify/gitconfig";
/// Where our programs write down what of the agent's they did not obey: a word for its kind, a tab and what it is, line by line.
/// Code under test can write there as well.
pub const VERIFY_FOUND: &str = "/opt/rollcage/verify/home/.rollcage/found";
/// Links for programs that tasks expect under a name which the host does not have.
pub const ALIASES: &str = "/opt/rollcage/bin";
/// Where an agent's bundle is shown.
pub const BUNDLE_DIR: &str = "/opt/rollcage/agent";
/// The mount point of the Node that runs an agent.
pub const NODE_DIR: &str = "/opt/rollcage/node";
