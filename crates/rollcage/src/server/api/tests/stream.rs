//! The stream over all rollouts of a caller.

use axum::body::BodyDataStream;
use futures::StreamExt;
use rollcage_model::id::RolloutId;

use super::*;
use crate::server::listen::Shutdown;

/// A stream that is being read.
struct Stream {
    body: BodyDataStream,
    read: String,
    /// The id of the last message that had one.
    id: Option<String>,
}

impl Client {
    async fn open(&self, query: &str, resumed: Option<&str>, shutdown: &Shutdown) -> Stream {
        let mut request = Request::get(format!("/v1/events{query}"))
            .extension(Owner(self.owner.as_str().into()))
            .extension(shutdown.clone());
        if let Some(resumed) = resumed {
            request = request.header("last-event-id", resumed);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Stream {
            body: response.into_body().into_data_stream(),
            read: String::new(),
            id: None,
        }
    }
}

impl Stream {
    /// The name and the data of the next message; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((message, rest)) = self.read.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = message.lines();
                    lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
                };
                let (name, data) = (field("event:"), field("data:"));
                self.id = field("id:").or(self.id.take());
                self.read = rest.to_owned();
                if let Some((name, data)) = name.zip(data) {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            let bytes = self.body.next().await?.unwrap();
            self.read += std::str::from_utf8(&bytes).unwrap();
        }
    }

    /// The next message of this name with these members. The index may be written anew at any time by other tests, of
    /// which a `hello` tells.
    async fn until(&mut self, wanted: &str, members: &[(&str, Value)]) -> Value {
        loop {
            let (name, data) = self.next().await.expect("the stream goes on");
            if name == wanted && members.iter().all(|(name, value)| data[*name] == *value) {
                return data;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_tells_of_all_rollouts() {
    let client = Client::new().await;
    let shutdown = Shutdown::default();
    let mut stream = client.open("", None, &shutdown).await;
    assert_eq!(stream.next().await.unwrap().0, "hello");
    let arguments = json!({"instruction": "Wait.", "solution": ["sleep 300"], "n": 2});
    let started = client.post(&arguments).await.json();
    let ids = started["rollout_ids"].as_array().unwrap();
    let mut unseen = ids.clone();
    while !unseen.is_empty() {
        let row = stream.until("row", &[("verdict", json!("open"))]).await;
        unseen.retain(|id| *id != row["rollout_id"]);
    }
    // A reader that comes later is told of what runs.
    let watch = format!("?watch={}:0", ids[0].as_str().unwrap());
    let mut watching = client.open(&watch, None, &shutdown).await;
    assert_eq!(watching.next().await.unwrap().0, "hello");
    watching
        .until("row", &[("rollout_id", ids[1].clone())])
        .await;
    for id in ids {
        let path = format!("/v1/rollouts/{}/cancel", id.as_str().unwrap());
        client.ask(Method::POST, &path).await;
    }
    // Either may end first.
    let mut open = ids.clone();
    while !open.is_empty() {
        let row = stream.until("row", &[("ended", json!("cancelled"))]).await;
        assert_eq!(
            (&row["status"], &row["verdict"]),
            (&json!("ended"), &json!("invalid"))
        );
        open.retain(|id| *id != row["rollout_id"]);
    }
    let one = ids[0].as_str().unwrap();
    let deleted = client
        .ask(Method::DELETE, &format!("/v1/rollouts/{one}"))
        .await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    stream
        .until("removed", &[("rollout_id", ids[0].clone())])
        .await;
    // The index has a line of it, before that of a rollout which ends now. Another test may make the index anew in this
    // moment; then there is a `hello` instead.
    let later = json!(client.commit(|_| ()));
    let is_last = |name: &str, row: &Value| name == "hello" || row["rollout_id"] == later;
    loop {
        let (name, data) = stream.next().await.expect("the stream goes on");
        assert_ne!(data["rollout_id"], ids[0], "{name} of a deleted rollout");
        if is_last(&name, &data) {
            break;
        }
    }
    shutdown.stopping.cancel();
    while let Some((name, data)) = stream.next().await {
        assert_ne!(data["rollout_id"], ids[0], "{name} of a deleted rollout");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_on_which_nothing_happens_has_a_beat() {
    let client = Client::new().await;
    let shutdown = Shutdown::default();
    let mut stream = client.open("", None, &shutdown).await;
    assert_eq!(stream.next().await.unwrap().0, "hello");
    for _ in 0..3 {
        assert_eq!(stream.until("beat", &[]).await, json!({}));
    }
    assert_eq!(stream.id, None, "it is nothing to resume from");
    shutdown.stopping.cancel();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_events_are_told_from_where_the_reader_was() {
    let client = Client::new().await;
    let shutdown = Shutdown::default();
    let arguments = json!({"instruction": "Wait.", "solution": ["sleep 300"]});
    let started = client.post(&arguments).await.json();
    let id = started["rollout_id"].as_str().unwrap().to_owned();
    let mut stream = client
        .open(&format!("?watch={id}:0"), None, &shutdown)
        .await;
    let first = stream.until("event", &[("rollout", json!(id))]).await;
    assert_eq!(
        (&first["seq"], &first["event"]),
        (&json!(1), &json!("queued"))
    );
    let second = stream.until("event", &[("seq", json!(2))]).await;
    assert_eq!(second["event"], "entered");
    assert_eq!(stream.id, Some(format!("{id}:2")));
    drop(stream);
    client
        .ask(Method::POST, &format!("/v1/rollouts/{id}/cancel"))
        .await;
    // A browser comes back with the address of the first time.
    let resumed = format!("{id}:2");
    let address = format!("?watch={id}:0");
    let mut again = client.open(&address, Some(&resumed), &shutdown).await;
    let next = again.until("event", &[]).await;
    assert_eq!(next["seq"], json!(3), "{next}");
    if next["event"] != "finished" {
        again.until("event", &[("event", json!("finished"))]).await;
    }
    shutdown.stopping.cancel();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_processes_end_is_told_to_its_owner() {
    let client = Client::new().await;
    let shutdown = Shutdown::default();
    let stranger = Client {
        router: client.router.clone(),
        backend: Arc::clone(&client.backend),
        owner: harness::owner(),
    };
    let mut stream = client.open("", None, &shutdown).await;
    assert_eq!(stream.next().await.unwrap().0, "hello");
    stranger.commit(|_| ());
    let id = client.commit(|result| result.task_id = "elsewhere".to_owned());
    // Another test may make the index anew in this moment; then the reader is told to read its lists.
    let told = loop {
        match stream.next().await.unwrap() {
            (name, data) if name == "row" => break data["rollout_id"] == json!(id),
            (name, _) if name == "hello" => {
                let page = client.get("/v1/rollouts").await.json();
                break page["rollouts"][0]["rollout_id"] == json!(id);
            }
            _ => {}
        }
    };
    assert!(told);
    let unknown = format!("?watch={}:0", RolloutId::generate());
    let mut unknown = client.open(&unknown, None, &shutdown).await;
    unknown.until("removed", &[]).await;
    let mut other = stranger
        .open(&format!("?watch={id}:0"), None, &shutdown)
        .await;
    other.until("removed", &[("rollout_id", json!(id))]).await;
    let too_many: Vec<_> = (0..9)
        .map(|_| format!("watch={}:0", RolloutId::generate()))
        .collect();
    let refused = client
        .get(&format!("/v1/events?{}", too_many.join("&")))
        .await;
    refused.check_error(400, "invalid_argument");
    shutdown.stopping.cancel();
    client.close().await;
}
