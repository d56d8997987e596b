//! HTTP servers that the program offers. `capture` is `rollcage proxy`; the others are the parts of a server of rollouts:
//! `tools` and `api` over one `backend`.

#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "no command serves it yet")
)]
pub(crate) mod api;
#[cfg_attr(not(test), expect(dead_code, reason = "no command serves it yet"))]
pub(crate) mod backend;
pub(crate) mod capture;
#[cfg(test)]
mod harness;
mod messages;
mod metrics;
#[cfg_attr(not(test), expect(dead_code, reason = "no command serves it yet"))]
pub(crate) mod tasks;
#[cfg_attr(not(test), expect(dead_code, reason = "no command serves it yet"))]
pub(crate) mod tool;
#[cfg_attr(not(test), expect(dead_code, reason = "no command serves it yet"))]
pub(crate) mod tools;
