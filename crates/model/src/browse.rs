//! What a person looks at: rollouts in a list, one rollout turn by turn and token by token, and figures over many. Pure
//! types and functions; the server's API returns them, a saved page holds them, and the page's own types are generated
//! from them.
//!
//! A [`Reading`] is one rollout's record, open for looking at; each of the other modules has what is asked of it.

mod conversation;
pub mod figures;
pub mod graph;
mod reading;
pub mod rollout;
mod said;
pub mod saved;
mod text;
pub mod tokens;
pub mod transcript;
pub mod turn;

pub use reading::Reading;

#[cfg(test)]
mod tests;
