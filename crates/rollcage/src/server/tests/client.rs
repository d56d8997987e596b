//! The official Python clients against the server, where they are installed.

use super::*;

/// Runs `$ROLLCAGE_CLIENT` in a shell with the server's address in `$URL`; it must end well.
///
/// `ROLLCAGE_CLIENT='python conformance.py $URL --tool echo …' ROLLCAGE_CLIENT_MODE=production cargo test -p rollcage
/// official_clients -- --ignored --nocapture`
#[tokio::test]
#[ignore = "needs a command in ROLLCAGE_CLIENT, such as OpenEnv's and MCP's Python clients"]
async fn official_clients_cannot_tell_the_difference() {
    let command = std::env::var("ROLLCAGE_CLIENT").unwrap();
    let mode = match std::env::var("ROLLCAGE_CLIENT_MODE").as_deref() {
        Ok("production") => Mode::Production,
        _ => Mode::Simulation,
    };
    let served = Served::with(ServerOptions { mode, ..options() }).await;
    let status = tokio::process::Command::new("sh")
        .args(["-c", &command])
        .env("URL", served.url(""))
        .status();
    assert!(status.await.unwrap().success());
}
