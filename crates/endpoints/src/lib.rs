//! Which model a rollout talks to: what a user says of it ([`choice`]), who serves models where ([`provider`]), and
//! servers that are found or started here ([`serving`]).

pub mod check;
pub mod choice;
pub mod provider;
pub mod serving;
