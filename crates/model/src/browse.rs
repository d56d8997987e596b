//! What a person looks at: rollouts in a list, one rollout turn by turn and token by token, and figures over many. Pure
//! types and functions; the server's API returns them, a saved page holds them, and the page's own types are generated
//! from them.

pub mod figures;
pub mod graph;
pub mod rollout;
pub mod tokens;
pub mod transcript;
pub mod turn;
