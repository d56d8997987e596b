//! How the model calls of a rollout go on from each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A call's place in the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphNode {
    /// The call.
    pub turn: usize,
    /// Its name in findings.
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded`, `failed` or `pending`.
    pub role: String,
    /// Why the role is not the agent's.
    pub reason: Option<String>,
    /// Whether its tokens are trained.
    pub is_trained: bool,
    /// The first call of its conversation.
    pub root: usize,
    /// Whether its conversation is a subagent's.
    pub is_subagent: bool,
}

/// How a call goes on from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Its prompt starts with the other's prompt and completion.
    Continues,
    /// By its messages, but not by its tokens.
    Retokenised,
    /// The agent changed the reply before it sent it back.
    Changed,
    /// From the other's prompt, without its reply.
    LeftOut,
    /// It starts over after a summary of the other's conversation.
    Compacts,
    /// The other's reply started this one's session: a subagent.
    Spawned,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphEdge {
    /// The earlier call.
    pub from: usize,
    /// The later call.
    pub to: usize,
    /// How.
    pub link: Link,
}

/// A page of a rollout's graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphPage {
    /// From `start` on, in the order of the requests.
    pub nodes: Vec<GraphNode>,
    /// The links that lead to these nodes.
    pub edges: Vec<GraphEdge>,
    /// The first node's number.
    pub start: usize,
    /// How many there are.
    pub total: usize,
}
