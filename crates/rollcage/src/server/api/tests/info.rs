//! What a page asks before it starts anything.

use axum::http::header::CONTENT_TYPE;
use rollcage_proxy::outbound::Guard;
use rollcage_testkit::upstream::Upstream;

use super::*;
use crate::server::listen::BODY_LIMIT;
use crate::server::ready::Readiness;

impl Client {
    async fn post_json(&self, path: &str, body: &Value) -> Answer {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        self.send(request, body.to_string()).await
    }

    async fn with(change: impl FnOnce(&mut rollcage_engine::intake::Catalogue)) -> Self {
        let backend = harness::backend_with(limits(), BODY_LIMIT, change).await;
        Client {
            router: routes(Arc::clone(&backend)),
            backend,
            owner: owner(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_preset_runs_as_it_says() {
    let client = Client::new().await;
    let presets = client.get("/v1/presets").await.json();
    let presets = presets["presets"].as_array().unwrap().clone();
    let expected = [
        ("hello", 1.0),
        ("fix-the-bug", 1.0),
        ("sales-report", 0.75),
        ("gives-up", 0.0),
    ];
    assert_eq!(presets.len(), expected.len());
    for (preset, (id, reward)) in presets.iter().zip(expected) {
        assert_eq!(preset["id"], id);
        let started = client.post(&preset["request"]).await;
        assert_eq!(started.status, StatusCode::ACCEPTED, "{:?}", started.body);
        let started = started.json();
        let rollout = started["rollout_id"].as_str().unwrap();
        let result = client.until_ended(&format!("/v1/rollouts/{rollout}")).await;
        assert_eq!(
            (&result["ended"], &result["reward"]),
            (&json!("completed"), &json!(reward)),
            "{id}: {result:#}"
        );
        let task = client.get(&format!("/v1/rollouts/{rollout}/task")).await;
        assert_eq!(task.json()["id"], id);
        let steps = preset["request"]["solution"].as_array().unwrap();
        assert_eq!(task.json()["solution"], json!(steps));
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_its_owners() {
    let mut client = Client::new().await;
    let started = client
        .post(&json!({"instruction": "Go.", "agent": "nop", "task_id": "mine"}))
        .await
        .json();
    let id = started["rollout_id"].as_str().unwrap().to_owned();
    client.until_ended(&format!("/v1/rollouts/{id}")).await;
    let path = format!("/v1/rollouts/{id}/task");
    assert_eq!(client.get(&path).await.json()["id"], "mine");
    client.owner = owner();
    client.get(&path).await.check_error(404, "not_found");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_says_what_it_is_and_why_nothing_can_run() {
    let client = Client::new().await;
    let trial = || Box::pin(async { Err("start a sandbox: no namespaces".to_owned()) }) as _;
    let readiness = Readiness::new(Box::new(trial), Arc::new(|| Ok(())));
    let about = About {
        name: "env".to_owned(),
        live: true,
        readiness: Arc::clone(&readiness),
        backend: Arc::clone(&client.backend),
    };
    let router = about_routes(Arc::new(about));
    let ask = async || {
        let request = Request::get("/v1/server").body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    assert_eq!(ask().await["sandbox"]["reason"], "starting");
    readiness.try_now().await.unwrap_err();
    let server = ask().await;
    let unready = json!({"ready": false, "reason": "start a sandbox: no namespaces"});
    assert_eq!(server["sandbox"], unready);
    assert_eq!(
        (&server["name"], &server["live"]),
        (&json!("env"), &json!(true))
    );
    assert_eq!(server["count_max"], 1000);
    let names: Vec<_> = server["formats"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), rollcage_model::export::Format::ALL.len());
    assert!(names.iter().all(|format| format["about"].is_string()));
    assert!(server["tasks"].as_u64().unwrap() >= 5);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_asked_for_its_models() {
    let client = Client::new().await;
    let scripted = client
        .post_json("/v1/endpoints/scripted/check", &json!({}))
        .await;
    assert_eq!(scripted.json()["reachable"], true);
    let upstream = Upstream::start_with_models(&["m1", "m2"], |_, _| unreachable!()).unwrap();
    let at = |url: &str| json!({"base_url": url, "api_key": "sk-very-secret"});
    let path = "/v1/endpoints/vllm/check";
    let found = client
        .post_json(path, &at(upstream.base_url()))
        .await
        .json();
    assert_eq!(
        (&found["kind"], &found["reachable"], &found["models"]),
        (&json!("vllm"), &json!(true), &json!(["m1", "m2"]))
    );
    let refusing = Router::new()
        .fallback(async || (StatusCode::UNAUTHORIZED, "the key sk-very-secret is wrong"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, refusing).await });
    let refused = client.post_json(path, &at(&url)).await;
    let text = String::from_utf8(refused.body.to_vec()).unwrap();
    assert!(!text.contains("very-secret"), "{text}");
    assert_eq!(refused.json()["reachable"], false);
    assert!(text.contains("refuses the API key"), "{text}");
    let gone = client.post_json(path, &at("http://127.0.0.1:9")).await;
    assert!(
        gone.json()["error"]
            .as_str()
            .unwrap()
            .contains("cannot reach")
    );
    // The server has no key for it, and says which variable is missing.
    let unset = client
        .post_json("/v1/endpoints/openai/check", &json!({}))
        .await;
    let unset = unset.json();
    assert_eq!(unset["reachable"], false);
    assert!(unset["error"].as_str().unwrap().contains("OPENAI_API_KEY"));
    let unknown = client
        .post_json("/v1/endpoints/nope/check", &json!({}))
        .await;
    let unknown = unknown.json();
    assert!(unknown["error"].as_str().unwrap().contains("nope"));
    let wrong = client
        .post_json(path, &json!({"api_keys": "sk-very-secret"}))
        .await;
    wrong.check_error(400, "invalid_argument");
    assert!(!String::from_utf8_lossy(&wrong.body).contains("secret"));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_reaches_no_more_than_a_rollout() {
    let internal = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    internal.set_nonblocking(true).unwrap();
    let port = internal.local_addr().unwrap().port();
    let client = Client::with(|catalogue| catalogue.guard = Some(Guard::new(Vec::new()))).await;
    for host in ["127.0.0.1", "localhost", "[::1]", "2130706433", "10.0.0.1"] {
        let body = json!({"base_url": format!("http://{host}:{port}"), "api_key": "k"});
        let answer = client.post_json("/v1/endpoints/vllm/check", &body).await;
        let answer = answer.json();
        assert_eq!(answer["reachable"], false);
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains("--allow-url"), "{host}: {error}");
    }
    assert!(internal.accept().is_err());
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_shown_as_a_command_and_not_started() {
    let client = Client::new().await;
    let path = "/v1/rollouts/command-line";
    let asked =
        json!({"task_id": "t", "instruction": "Go.", "agent": "nop", "api_key": "sk-very-secret"});
    let answer = client.post_json(path, &asked).await;
    let command = answer.json()["command"].as_str().unwrap().to_owned();
    assert!(command.contains("--task-id t") && !command.contains("very-secret"));
    let listed = client.get("/v1/rollouts?task=t").await.json();
    let own = listed["rollouts"].as_array().unwrap().iter();
    assert_eq!(own.filter(|row| row["status"] != "ended").count(), 0);
    let wrong = client.post_json(path, &json!({"instruction": 1})).await;
    wrong.check_error(400, "invalid_argument");
    let form = Request::post(path).header(CONTENT_TYPE, "text/plain");
    let form = client.send(form, "{}".to_owned()).await;
    form.check_error(415, "unsupported_media_type");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_endpoints_are_listed() {
    let client = Client::with(|catalogue| {
        catalogue.keys =
            Arc::new(|name| (name == "OPENAI_API_KEY").then(|| "sk-very-secret".to_owned()));
        catalogue.variables =
            Arc::new(|name| (name == "VLLM_URL").then(|| "http://gpu-1:8000".to_owned()));
    })
    .await;
    let agents = client.get("/v1/agents").await.json();
    let agents = agents["agents"].as_array().unwrap().clone();
    let opencode = agents.iter().find(|agent| agent["name"] == "opencode");
    assert_eq!(opencode.unwrap()["drivers"], json!(["cli", "serve"]));
    let endpoints = client.get("/v1/endpoints").await;
    assert!(!String::from_utf8_lossy(&endpoints.body).contains("secret"));
    let endpoints = endpoints.json();
    let endpoints = endpoints["endpoints"].as_array().unwrap().clone();
    let of = |kind: &str| {
        let found = endpoints.iter().find(|endpoint| endpoint["kind"] == kind);
        found.unwrap().clone()
    };
    assert_eq!(of("openai")["has_key"], true);
    for (kind, is_configured) in [
        ("scripted", true),
        ("openai", true),
        // Its address is enough: it is asked what it serves.
        ("vllm", true),
        ("anthropic", false),
        ("openrouter", false),
    ] {
        assert_eq!(of(kind)["configured"], is_configured, "{kind}");
    }
    for (kind, supports_thinking) in [("vllm", true), ("anthropic", true), ("openai", false)] {
        assert_eq!(of(kind)["supports_thinking"], supports_thinking, "{kind}");
    }
    assert!(
        !of("vllm")["variables"]["base_url"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    client.close().await;
}
