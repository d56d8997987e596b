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
/// The mount point of an agent's bundle.
pub const BUNDLE_DIR: &str = "/opt/rollcage/agent";
/// The mount point of the Node that runs an agent.
pub const NODE_DIR: &str = "/opt/rollcage/node";
