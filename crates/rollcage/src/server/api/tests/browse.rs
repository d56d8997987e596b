//! One rollout's calls, tokens and words over the API, with the real OpenCode and the scripted endpoint.

use std::time::Duration;

use super::*;

impl Client {
    /// Starts a rollout; returns its path.
    async fn start(&self, arguments: &Value) -> String {
        let started = self.post(arguments).await.json();
        let id = started["rollout_id"].as_str().unwrap();
        format!("/v1/rollouts/{id}")
    }

    pub(super) async fn until_ended(&self, path: &str) -> Value {
        loop {
            let shown = self.get(path).await.json();
            if shown["status"] == "ended" {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn check_turns(&self, path: &str, result: &Value) {
        let page = self.get(&format!("{path}/turns")).await.json();
        let turns = page["turns"].as_array().unwrap();
        assert_eq!(page["total"], result["usage"]["calls"]);
        assert_eq!(json!(turns.len()), page["total"]);
        let graph = self.get(&format!("{path}/graph")).await.json();
        let numbers: Vec<_> = turns.iter().map(|turn| &turn["turn"]).collect();
        let nodes = graph["nodes"].as_array().unwrap();
        let nodes: Vec<_> = nodes.iter().map(|node| &node["turn"]).collect();
        assert_eq!(numbers, nodes);
        let mut trained = 0;
        for turn in turns {
            let one = format!("{path}/turns/{}", turn["turn"]);
            let detail = self.get(&one).await.json();
            assert_eq!(detail["node_id"], turn["node_id"]);
            let tokens = self.get(&format!("{one}/tokens")).await.json();
            assert_eq!(tokens["total"], detail["completion_ids"]);
            let tokens = tokens["tokens"].as_array().unwrap();
            trained += tokens.iter().filter(|token| token["mask"] == 1).count();
        }
        assert_eq!(json!(trained), result["usage"]["trainable_tokens"]);
        let figures = self.get(&format!("{path}/figures")).await.json();
        assert_eq!(
            (&figures["trainable_tokens"], &figures["turns"]),
            (&result["usage"]["trainable_tokens"], &page["total"])
        );
        let limited = self.get(&format!("{path}/turns?start=1&limit=1")).await;
        assert_eq!(limited.json()["turns"], json!([turns[1]]));
    }

    async fn check_words(&self, path: &str) {
        let page = self.get(&format!("{path}/transcript")).await.json();
        let entries = page["entries"].as_array().unwrap();
        let mut calls = entries
            .iter()
            .flat_map(|entry| entry["tool_calls"].as_array().unwrap());
        let used = calls.find(|call| call["arguments"].as_str().unwrap().contains("<script>"));
        assert!(used.unwrap()["result"].is_string(), "{page}");
        let root = &page["root"];
        let same = self
            .get(&format!("{path}/transcript?conversation={root}"))
            .await;
        assert_eq!(same.json(), page);
    }

    async fn check_raw(&self, path: &str) {
        let request = self.get(&format!("{path}/turns/0/raw")).await;
        assert_eq!(request.content_type, "text/plain; charset=utf-8");
        assert!(request.json()["messages"].is_array());
        let stored = self
            .get(&format!("{path}/turns/0/raw?what=response&download=true"))
            .await;
        assert_eq!(
            (stored.status, stored.content_type.as_str()),
            (StatusCode::OK, "text/plain; charset=utf-8")
        );
        self.get(&format!("{path}/turns/0/raw?what=sent"))
            .await
            .check_error(404, "not_found");
    }

    /// A build without pages says so.
    async fn check_page(&self, path: &str) {
        let page = self.get(&format!("{path}/page")).await;
        if crate::server::web::file("saved.js").is_none() {
            page.check_error(404, "not_found");
            return;
        }
        assert_eq!(page.content_type, "application/octet-stream");
        assert!(page.body.starts_with(b"<!doctype html>"));
    }

    async fn check_mistakes(&self, path: &str) {
        for bad in [
            "turns?limit=0",
            "turns?limit=501",
            "turns?start=-1",
            "turns?begin=1",
            "turns/x",
            "turns/-1",
            "turns/0?messages=old",
            "turns/0/tokens?limit=5001",
            "turns/0/tokens?part=all",
            "turns/0/raw?what=html",
            "graph?limit=5001",
            "transcript?conversation=x",
            "transcript?limit=1001",
        ] {
            let answer = self.get(&format!("{path}/{bad}")).await;
            answer.check_error(400, "invalid_argument");
        }
        for missing in [
            "turns/999",
            "turns/99999999999999999999999",
            "turns/999/tokens",
            "turns/999/raw",
            "transcript?conversation=999",
        ] {
            let answer = self.get(&format!("{path}/{missing}")).await;
            answer.check_error(404, "not_found");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_read_call_by_call_and_only_by_its_owner() {
    let client = Client::new().await;
    let path = client
        .start(&json!({"instruction": "Create a.txt.", "solution": ["echo '<script>' > a.txt"]}))
        .await;
    let result = client.until_ended(&path).await;
    assert_eq!(result["ended"], "completed", "{}", result["error"]);
    client.check_turns(&path, &result).await;
    client.check_words(&path).await;
    client.check_raw(&path).await;
    client.check_mistakes(&path).await;
    client.check_page(&path).await;
    let stranger = Client {
        router: client.router.clone(),
        backend: Arc::clone(&client.backend),
        owner: harness::owner(),
    };
    for part in [
        "turns",
        "turns/0",
        "turns/0/tokens",
        "turns/0/raw",
        "graph",
        "figures",
        "transcript",
        "page",
    ] {
        let answer = stranger.get(&format!("{path}/{part}")).await;
        answer.check_error(404, "not_found");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_rollout_is_read_as_far_as_it_is() {
    let client = Client::new().await;
    let path = client
        .start(&json!({"instruction": "Wait here.", "solution": ["sleep 300"]}))
        .await;
    // Nothing of it has run yet, or hardly anything.
    assert!(client.get(&format!("{path}/turns")).await.json()["total"].is_number());
    let transcript = format!("{path}/transcript");
    let said = loop {
        let page = client.get(&transcript).await.json();
        let entries = page["entries"].as_array().unwrap();
        let mut calls = entries
            .iter()
            .flat_map(|entry| entry["tool_calls"].as_array().unwrap());
        if let Some(call) = calls.next() {
            break call.clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(said["result"].is_null(), "{said}");
    let page = client.get(&format!("{path}/page")).await;
    page.check_error(409, "still_running");
    let figures = client.get(&format!("{path}/figures")).await.json();
    assert!(figures["turns"].as_u64().unwrap() >= 1);
    client.ask(Method::POST, &format!("{path}/cancel")).await;
    client.until_ended(&path).await;
    let after = client.get(&format!("{path}/turns")).await.json();
    let roles = after["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| &turn["role"]);
    assert!(roles.clone().all(|role| role != "pending"), "{after}");
    client.close().await;
}
