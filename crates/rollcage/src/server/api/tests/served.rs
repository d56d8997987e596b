//! Messages of rollouts: read, sent, and the end on request, with the real OpenCode as a server.

use std::time::Duration;

use super::*;

impl Client {
    async fn say(&self, path: &str, body: &Value) -> Answer {
        let request = Request::builder().method(Method::POST).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.send(request, body.to_string()).await
    }

    async fn until(&self, path: &str, name: &str, expect: &Value) {
        while &self.get(path).await.json()[name] != expect {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_rollout_is_messaged_and_finalized() {
    let client = Client::new().await;
    let started = client
        .post(&json!({
            "instruction": "Begin.", "driver": "serve", "verify": ["test -f b"],
            "solution": ["touch a", {"say": "One."}, "touch b", {"say": "Two."}],
        }))
        .await;
    let id = started.json()["rollout_id"].as_str().unwrap().to_owned();
    let one = format!("/v1/rollouts/{id}");
    let messages = format!("{one}/messages");
    client.until(&one, "idle", &json!(true)).await;
    let sent = client.say(&messages, &json!({"text": "Go on."})).await;
    assert_eq!(
        (sent.status.as_u16(), &sent.json()["queued"]),
        (202, &json!(true))
    );
    client.until(&one, "calls", &json!(4)).await;
    let finalized = client.say(&format!("{one}/finalize"), &json!({})).await;
    assert_eq!(finalized.json()["finalized"], json!(true));
    client.until(&one, "status", &json!("ended")).await;
    let result = client.get(&one).await.json();
    assert_eq!(
        (&result["driver"], &result["reward"]),
        (&json!("serve"), &json!(1.0))
    );
    let told = client.get(&messages).await.json();
    assert_eq!(told["serve_session_id"], result["serve_session_id"]);
    let last = told["messages"].as_array().unwrap().last().unwrap();
    assert!(last["parts"].to_string().contains("Two."), "{last}");
    let late = client.say(&messages, &json!({"text": "More."})).await;
    late.check_error(409, "refused");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_messages_and_takes_none() {
    let client = Client::new().await;
    let started = client
        .post(&json!({"instruction": "Begin.", "agent": "nop", "verify": ["sleep 1"]}))
        .await;
    let id = started.json()["rollout_id"].as_str().unwrap().to_owned();
    let messages = format!("/v1/rollouts/{id}/messages");
    let refused = client.say(&messages, &json!({"text": "More."})).await;
    refused.check_error(409, "refused");
    let empty = client.say(&messages, &json!({"text": " "})).await;
    assert_eq!(empty.status.as_u16(), 400);
    client
        .until(&format!("/v1/rollouts/{id}"), "status", &json!("ended"))
        .await;
    let told = client.get(&messages).await.json();
    assert_eq!(
        (
            &told["messages"],
            &told["serve_session_id"],
            &told["status"]
        ),
        (&json!([]), &Value::Null, &json!("done"))
    );
    client.close().await;
}
