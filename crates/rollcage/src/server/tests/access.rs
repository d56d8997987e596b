//! Which requests are admitted.

use rollcage_proxy::secret::Secret;

use super::*;
use crate::server::access::AccessToken;

fn with_tokens() -> ServerOptions {
    let token = |owner: &str, value: &str| AccessToken {
        owner: owner.to_owned(),
        value: Secret::new(value),
    };
    let policy = AccessPolicy::Tokens(vec![token("A", "alpha"), token("B", "beta")]);
    ServerOptions {
        policy,
        ..options()
    }
}

async fn rpc_as(served: &Served, token: &str, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "method": method, "params": params, "id": 1});
    let request = served
        .client
        .post(served.url("/mcp"))
        .header("content-type", "application/json")
        .body(body.to_string());
    read(request.bearer_auth(token).send().await.unwrap()).await
}

#[tokio::test]
async fn without_a_token_only_health_is_answered() {
    let served = Served::with(with_tokens()).await;
    assert_eq!(served.get("/health").await.status(), 200);
    for path in ["/metadata", "/docs", "/v1/anything", "/nope"] {
        let response = served.get(path).await;
        assert_eq!(response.status(), 401, "{path}");
        assert!(
            read(response).await["detail"]
                .as_str()
                .unwrap()
                .contains("token")
        );
    }
    let request = served
        .client
        .get(served.url("/metadata"))
        .header("x-api-key", "beta");
    assert_eq!(request.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_socket_may_bring_its_token_in_the_query() {
    let served = Served::with(with_tokens()).await;
    let mut socket = served.socket("/ws?token=alpha").await;
    assert_eq!(socket.ask(json!({"type": "state"})).await["type"], "state");
    let url = format!("ws://{}/ws?token=gamma", served.address);
    let error = tokio_tungstenite::connect_async(url).await.unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
}

#[tokio::test]
async fn sessions_belong_to_their_token() {
    let served = Served::with(with_tokens()).await;
    let created = rpc_as(&served, "alpha", "openenv/session/create", json!({})).await;
    let id = created["result"]["session_id"].clone();
    let call = json!({"name": "rollout", "session_id": id});
    let answer = rpc_as(&served, "alpha", "tools/call", call.clone()).await;
    assert_eq!(answer["result"]["data"], json!({"owner": "A"}));
    let answer = rpc_as(&served, "beta", "tools/call", call).await;
    assert_eq!(answer["error"]["code"], -32602);
}

#[tokio::test]
async fn a_web_page_of_another_origin_is_kept_out() {
    let served = Served::start().await;
    let request = served.client.get(served.url("/metadata"));
    let foreign = request.header("origin", "https://evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    let request = served.client.get(served.url("/metadata"));
    let rebound = request.header("host", "evil.example");
    assert_eq!(rebound.send().await.unwrap().status(), 403);
}
