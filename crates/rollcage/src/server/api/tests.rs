use axum::body::Bytes;
use axum::http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::server::harness::{self, backend, limits, owner};

mod browse;
mod document;
mod info;
mod lists;
mod live;
mod served;
mod stream;

struct Client {
    backend: Arc<Backend>,
    router: Router,
    owner: String,
}

struct Answer {
    status: StatusCode,
    content_type: String,
    body: Bytes,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    fn check_error(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status.as_u16(), &self.json()["error"]["code"]),
            (status, &json!(code)),
            "{:?}",
            self.body
        );
        assert!(self.json()["error"]["message"].is_string());
    }
}

impl Client {
    async fn new() -> Self {
        let backend = backend(limits()).await;
        Client {
            router: routes(Arc::clone(&backend)),
            backend,
            owner: owner(),
        }
    }

    async fn send(&self, request: axum::http::request::Builder, body: String) -> Answer {
        let request = request.extension(Owner(self.owner.as_str().into()));
        let request = request.body(Body::from(body)).unwrap();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.to_str().unwrap().to_owned());
        let answer = Answer {
            status: response.status(),
            content_type: content_type.unwrap_or_default(),
            body: response.into_body().collect().await.unwrap().to_bytes(),
        };
        document::check_answer(&method, &path, &answer);
        answer
    }

    async fn ask(&self, method: Method, path: &str) -> Answer {
        self.send(Request::builder().method(method).uri(path), String::new())
            .await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path).await
    }

    async fn post(&self, arguments: &Value) -> Answer {
        let request =
            Request::post("/v1/rollouts").header(header::CONTENT_TYPE, "application/json");
        self.send(request, arguments.to_string()).await
    }

    /// The stream is live until `finished`, then it ends.
    async fn check_stream(&self, path: &str) {
        let streamed = self.get(&format!("{path}/events")).await;
        assert_eq!(streamed.content_type, "text/event-stream");
        let events = events_of(&streamed.body);
        let numbers: Vec<_> = events.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
        assert_eq!(
            (events[0].1.as_str(), events.last().unwrap().1.as_str()),
            ("queued", "finished")
        );
        let request = Request::get(format!("{path}/events")).header("last-event-id", "3");
        let resumed = self.send(request, String::new()).await;
        assert_eq!(events_of(&resumed.body), events[3..]);
    }

    /// Trace, files and logs of a rollout that wrote a.txt.
    async fn check_content(&self, path: &str) {
        for format in [
            "training-trace",
            "trace-entries",
            "capture",
            "atif",
            "sft",
            "turns",
        ] {
            let trace = self.get(&format!("{path}/trace?format={format}")).await;
            assert_eq!(trace.status, StatusCode::OK, "{format}: {:?}", trace.body);
            let text = std::str::from_utf8(&trace.body).unwrap();
            assert!(
                text.lines()
                    .all(|line| serde_json::from_str::<Value>(line).is_ok()),
                "{format}"
            );
        }
        let files = self.get(&format!("{path}/files")).await.json();
        assert_eq!(
            files["files"][0],
            json!({"path": "/home/user/workdir/a.txt", "chars": 9})
        );
        for name in ["a.txt", "/home/user/workdir/a.txt"] {
            let file = self.get(&format!("{path}/files?path={name}")).await;
            assert_eq!(
                (file.content_type.as_str(), &file.body[..]),
                ("text/plain; charset=utf-8", b"<script>\n".as_slice())
            );
        }
        let changes = self.get(&format!("{path}/changes")).await.json();
        assert_eq!(
            changes,
            json!({
                "files": [{
                    "path": "/home/user/workdir/a.txt", "change": "added", "before": null, "after": "<script>\n",
                    "is_cut": false,
                }],
                "start": 0, "total": 1, "has_start": true,
            })
        );
        let network = self.get(&format!("{path}/network?start=1&limit=10")).await;
        assert_eq!(
            network.json(),
            json!({"attempts": [], "start": 1, "total": 0})
        );
        for query in ["limit=0", "limit=100000", "start=-1", "nope=1"] {
            for name in ["changes", "network"] {
                self.get(&format!("{path}/{name}?{query}"))
                    .await
                    .check_error(400, "invalid_argument");
            }
        }
        self.get(&format!("{path}/files?path=/etc/passwd"))
            .await
            .check_error(404, "not_found");
        assert!(!self.get(&format!("{path}/logs")).await.body.is_empty());
        assert!(
            !self
                .get(&format!("{path}/logs?name=proxy"))
                .await
                .body
                .is_empty()
        );
    }

    async fn close(self) {
        harness::close(&self.backend).await;
    }
}

/// `(id, name)` of every event of a stream.
fn events_of(body: &Bytes) -> Vec<(u64, String)> {
    let text = std::str::from_utf8(body).unwrap();
    let blocks = text.split("\n\n").filter(|block| block.contains("data:"));
    blocks
        .map(|block| {
            let field = |name: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim_start_matches(':').trim().to_owned()
            };
            let data: Value = serde_json::from_str(&field("data")).unwrap();
            assert_eq!(data["event"], json!(field("event")));
            (field("id").parse().unwrap(), field("event"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_from_its_start_to_its_deletion() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Create a.txt.", "solution": ["echo '<script>' > a.txt"], "task_id": "rest", "verify": ["test -f a.txt"],
    });
    let started = client.post(&arguments).await;
    assert_eq!(started.status, StatusCode::ACCEPTED, "{:?}", started.body);
    let id = started.json()["rollout_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/rollouts/{id}");
    let running = client.get(&path).await.json();
    assert!(
        running["ended"].is_null() && running["endpoint"] == "scripted",
        "{running}"
    );
    client
        .ask(Method::DELETE, &path)
        .await
        .check_error(409, "still_running");

    client.check_stream(&path).await;
    let result = client.get(&path).await;
    let result = result.json();
    assert_eq!(
        (&result["status"], &result["ended"]),
        (&json!("ended"), &json!("completed")),
        "{}",
        result["error"]
    );
    assert_eq!(result["reward"], json!(1.0));
    let listed = client
        .get("/v1/rollouts?task=rest&ended=completed&agent=opencode&model=scripted")
        .await
        .json();
    assert_eq!(listed["rollouts"][0]["rollout_id"], json!(id));
    assert!(listed["next_cursor"].is_null());
    assert_eq!(
        client.get("/v1/rollouts?task=none").await.json()["rollouts"],
        json!([])
    );

    client.check_content(&path).await;
    let cancelled = client.ask(Method::POST, &format!("{path}/cancel")).await;
    assert_eq!(cancelled.json()["cancelled"], json!(false));
    let metrics = client.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        metrics.contains("rollcage_rollouts_total{ended=\"completed\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("rollcage_sandbox_starts_total 1\n"),
        "{metrics}"
    );

    assert_eq!(
        client.ask(Method::DELETE, &path).await.status,
        StatusCode::NO_CONTENT
    );
    client.get(&path).await.check_error(404, "not_found");
    assert!(
        !client
            .backend
            .engine
            .store()
            .directory(id.parse().unwrap())
            .exists()
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_rollout_is_found_again_by_a_server_that_starts_later() {
    let client = Client::new().await;
    let started = client
        .post(&json!({"instruction": "Wait.", "solution": ["sleep 300"]}))
        .await;
    let path = format!(
        "/v1/rollouts/{}",
        started.json()["rollout_id"].as_str().unwrap()
    );
    for name in ["files", "changes", "network"] {
        client
            .get(&format!("{path}/{name}"))
            .await
            .check_error(409, "still_running");
    }
    let cancelled = client.ask(Method::POST, &format!("{path}/cancel")).await;
    assert_eq!(
        (cancelled.status.as_u16(), &cancelled.json()["cancelled"]),
        (202, &json!(true))
    );
    let owner = client.owner.clone();
    client.close().await;

    let later = Client {
        owner,
        ..Client::new().await
    };
    let result = later.get(&path).await.json();
    assert_eq!(
        (&result["status"], &result["ended"]),
        (&json!("ended"), &json!("cancelled"))
    );
    let events = later.get(&format!("{path}/events")).await;
    let events = events_of(&events.body);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].1, "finished");
    let request =
        Request::get(format!("{path}/events")).header("last-event-id", events[0].0.to_string());
    assert_eq!(
        events_of(&later.send(request, String::new()).await.body),
        []
    );
    later
        .get(&format!("{path}/trace"))
        .await
        .check_error(409, "not_trainable");
    let stranger = Client {
        router: later.router.clone(),
        backend: Arc::clone(&later.backend),
        owner: harness::owner(),
    };
    stranger.get(&path).await.check_error(404, "not_found");
    stranger
        .ask(Method::DELETE, &path)
        .await
        .check_error(404, "not_found");
    later.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_found_nowhere() {
    let client = Client::new().await;
    let key = "sk-very-secret-4711";
    let arguments = json!({
        "instruction": "Go.", "base_url": "http://127.0.0.1:9", "api_key": key, "model": "m", "task_id": "keys",
    });
    let started = client.post(&arguments).await;
    let id = started.json()["rollout_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/rollouts/{id}");
    let mut seen = vec![started.body, client.get(&path).await.body];
    seen.push(client.get(&format!("{path}/events")).await.body);
    seen.push(client.get(&path).await.body);
    let result: Value = serde_json::from_slice(&seen[3]).unwrap();
    assert_eq!(
        result["ended"],
        json!("upstream_failed"),
        "{}",
        result["error"]
    );
    seen.push(client.get("/v1/rollouts?task=keys").await.body);
    seen.push(client.get("/v1/endpoints").await.body);
    let directory = client.backend.engine.store().directory(id.parse().unwrap());
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        seen.push(std::fs::read(entry.path()).unwrap().into());
    }
    for body in seen {
        assert!(!String::from_utf8_lossy(&body).contains(key));
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_get_a_status_and_a_reason() {
    let client = Client::new().await;
    client
        .post(&json!({"instruction": "Go."}))
        .await
        .check_error(400, "invalid_argument");
    client
        .post(&json!([1]))
        .await
        .check_error(400, "invalid_argument");
    let post = || {
        Request::post("/v1/rollouts")
            .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
    };
    client
        .send(post(), "{\"api_key\": sk-1}".to_owned())
        .await
        .check_error(400, "invalid_json");
    let large = format!("{{\"instruction\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
    client
        .send(post(), large)
        .await
        .check_error(413, "too_large");
    let form = Request::post("/v1/rollouts").header(header::CONTENT_TYPE, "text/plain");
    client
        .send(form, "{}".to_owned())
        .await
        .check_error(415, "unsupported_media_type");
    let many = json!({"instruction": "Go.", "solution": ["true"], "n": 100});
    client.post(&many).await.check_error(429, "queue_full");
    client
        .get("/v1/rollouts/none")
        .await
        .check_error(404, "not_found");
    client
        .get("/v1/rollouts/01a1def5-4761-728b-8052-f97b33bee3e5")
        .await
        .check_error(404, "not_found");
    client
        .get("/v1/nothing")
        .await
        .check_error(404, "not_found");
    client
        .ask(Method::PUT, "/v1/rollouts")
        .await
        .check_error(405, "method_not_allowed");
    assert!(client.get("/v1/agents").await.json()["agents"].is_array());
    assert!(
        client.get("/v1/tasks?stop=1").await.json()["tasks"]
            .as_array()
            .unwrap()
            .len()
            == 1
    );
    client.close().await;
}
