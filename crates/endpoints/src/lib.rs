//! Which model a rollout uses: the user's choice ([`choice`]), known providers ([`provider`]), and model servers that
//! we find or start ([`serving`]).

pub mod check;
pub mod choice;
pub mod provider;
pub mod serving;
