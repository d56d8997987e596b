//! Where things stand in every sandbox, and whose they are.

/// The unprivileged user that agents run as.
pub const USER: &str = "user";
/// Its number, and that of its group.
pub const USER_ID: u32 = 1000;
/// The user's home directory.
pub const HOME: &str = "/home/user";
/// Where the agent works.
pub const WORKDIR: &str = "/home/user/workdir";
/// Task files that are not part of the work directory.
pub const TASK_DIR: &str = "/home/user/task";
/// Holds [`AGENT_LOGS`] and [`VERIFIER_LOGS`].
pub const LOGS: &str = "/home/user/logs";
/// What agents leave for a verifier to read.
pub const AGENT_LOGS: &str = "/home/user/logs/agent";
/// Read-only until [`crate::Sandbox::unseal`]; the reward override lives here.
pub const VERIFIER_LOGS: &str = "/home/user/logs/verifier";
/// What the verifier checks with. Empty and read-only until [`crate::Sandbox::unseal`], so that nobody can be there
/// before it.
pub const TESTS: &str = "/home/user/tests";
/// Where setup commands install packages and programs: theirs until [`crate::Sandbox::seal_setup`], read-only after it.
pub const SETUP: &str = "/opt/setup";
/// `PYTHONUSERBASE` for commands that are to import what setup installed first, and what the agent installed last. Of the
/// agent's packages no `.pth` file is run, since those hold code.
pub const PYTHON_BASE: &str = "/opt/rollcage/python";
/// Links for programs that tasks expect under a name which the host does not have.
pub const ALIASES: &str = "/opt/rollcage/bin";
/// Where an agent's bundle is shown.
pub const BUNDLE_DIR: &str = "/opt/rollcage/agent";
/// Where the Node that runs an agent is shown.
pub const NODE_DIR: &str = "/opt/rollcage/node";
