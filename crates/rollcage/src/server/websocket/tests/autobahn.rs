//! Autobahn's test suite against an echo; `scripts/autobahn/run` fetches it and starts this.

use super::echo::Echo;

/// Runs `$ROLLCAGE_CLIENT` in a shell with the echo's address in `$URL`; it must end well.
#[tokio::test]
#[ignore = "needs a command in ROLLCAGE_CLIENT; scripts/autobahn/run brings one"]
async fn autobahn_finds_nothing() {
    let command = std::env::var("ROLLCAGE_CLIENT").unwrap();
    let echo = Echo::start().await;
    let status = tokio::process::Command::new("sh")
        .args(["-c", &command])
        .env("URL", format!("ws://{}", echo.address))
        .status();
    assert!(status.await.unwrap().success());
}
