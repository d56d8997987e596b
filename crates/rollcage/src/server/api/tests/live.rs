//! The routes of live agents, as far as they need none.

use super::*;

const NOBODY: &str = "/v1/live/01a1e4dd-d346-7035-8af4-5d04480d2465";

async fn post(client: &Client, path: &str, body: Value) -> Answer {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    client.send(request, body.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_request_is_told() {
    let client = Client::new().await;
    let listed = client.get("/v1/live").await;
    assert_eq!(listed.json(), json!({"agents": []}));
    for path in [
        "",
        "/health",
        "/logs",
        "/messages",
        "/files",
        "/files/a",
        "/turns",
        "/turns/t",
    ] {
        let answer = client.get(&format!("{NOBODY}{path}")).await;
        answer.check_error(404, "not_found");
    }
    for path in ["/start", "/stop", "/turns/t/abort"] {
        let answer = post(&client, &format!("{NOBODY}{path}"), json!({})).await;
        answer.check_error(404, "not_found");
    }
    for (body, said) in [
        (
            json!({"instruction": "x"}),
            "unknown argument `instruction`",
        ),
        (
            json!({"sandbox": "none"}),
            "only for whoever runs the program",
        ),
        (json!({"deadline_s": -1}), "deadline_s"),
        (json!({"agent": "nobody"}), "nobody"),
        (json!({}), "endpoint"),
        (json!({"agent": "claude", "solution": ["true"]}), "opencode"),
    ] {
        let answer = post(&client, "/v1/live", body).await;
        answer.check_error(400, "invalid_argument");
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains(said), "{message}");
    }
    let plain = Request::builder().method(Method::POST).uri("/v1/live");
    let answer = client.send(plain, "{}".to_owned()).await;
    answer.check_error(415, "unsupported_media_type");
    harness::close(&client.backend).await;
}
