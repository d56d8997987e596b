//! The page, its sign-in, and who may use the cookie, over real sockets.

use rollcage_proxy::secret::Secret;

use super::*;
use crate::server::access::AccessToken;

const TOKEN: &str = "a-token-that-is-long";

fn with_token() -> ServerOptions {
    let token = AccessToken {
        owner: "TEAM".to_owned(),
        value: Secret::new(TOKEN),
    };
    ServerOptions {
        policy: AccessPolicy::Tokens(vec![token]),
        ..options()
    }
}

fn open() -> ServerOptions {
    ServerOptions {
        policy: AccessPolicy::Anyone(vec!["cage.example".parse().unwrap()]),
        ..options()
    }
}

impl Served {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> reqwest::Response {
        let method = method.parse().unwrap();
        let mut request = self.client.request(method, self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body.to_owned()).send().await.unwrap()
    }

    async fn sign_in(&self, token: &str, headers: &[(&str, &str)]) -> reqwest::Response {
        let json = [("content-type", "application/json")];
        let headers = [&json, headers].concat();
        let body = json!({ "token": token }).to_string();
        self.send("POST", "/v1/session", &headers, &body).await
    }

    /// The `Cookie` header of a browser that has signed in.
    async fn cookie(&self) -> String {
        let answer = self.sign_in(TOKEN, &[]).await;
        assert_eq!(answer.status(), 200);
        let set = answer.headers()["set-cookie"].to_str().unwrap();
        set.split(';').next().unwrap().to_owned()
    }

    async fn status_with(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.send(method, path, headers, "").await.status().as_u16()
    }
}

#[tokio::test]
async fn the_page_and_its_sign_in_need_no_token() {
    let served = Served::with(with_token()).await;
    let root = served.get("/").await;
    assert_eq!(root.status(), 307);
    assert_eq!(root.headers()["location"], "web/");
    // The file is there or it is not; either way nobody asks for a token.
    for path in ["/web/", "/web/assets/nothing.js"] {
        assert_ne!(served.get(path).await.status(), 401, "{path}");
    }
    let session = read(served.get("/v1/session").await).await;
    assert_eq!(
        session,
        json!({"access": "token", "signed_in": false, "owner": null})
    );
    for (method, path) in [
        ("GET", "/web/metadata"),
        ("GET", "/web/state"),
        ("POST", "/web/reset"),
        ("POST", "/web/"),
        ("GET", "/metadata"),
        ("GET", "/docs"),
        ("GET", "/v1/rollouts"),
    ] {
        assert_eq!(served.status_with(method, path, &[]).await, 401, "{path}");
    }
    let refused = read(served.get("/v1/rollouts").await).await;
    assert_eq!(refused["error"]["code"], "unauthorized");
    assert_eq!(refused["error"]["message"], refused["detail"]);
}

#[tokio::test]
async fn a_browser_signs_in_and_out() {
    let served = Served::with(with_token()).await;
    let answer = served.sign_in(TOKEN, &[]).await;
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    let port = served.address.port();
    assert!(cookie.starts_with(&format!("rollcage_token_{port}=")));
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(TOKEN) && !cookie.contains("Secure"));
    let signed_in = json!({"access": "token", "signed_in": true, "owner": "TEAM"});
    assert_eq!(read(answer).await, signed_in);
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let own = [
        ("cookie", cookie.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    let session = served.send("GET", "/v1/session", &own, "").await;
    assert_eq!(read(session).await, signed_in);
    assert_eq!(served.status_with("GET", "/metadata", &own).await, 200);
    let out = served.send("DELETE", "/v1/session", &own, "").await;
    let cleared: Vec<_> = out.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cleared.len(), 2);
    let is_cleared = |value: &&reqwest::header::HeaderValue| {
        value.to_str().is_ok_and(|it| it.contains("Max-Age=0"))
    };
    assert!(cleared.iter().all(is_cleared));
    assert_eq!(read(out).await["signed_in"], false);
}

#[tokio::test]
async fn the_cookie_fits_where_the_page_is_shown() {
    let served = Served::with(with_token()).await;
    let proxied = [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "a.example"),
        ("content-type", "application/json"),
    ];
    for (framed, expected) in [
        (false, "; HttpOnly; SameSite=Strict; Secure"),
        (true, "; HttpOnly; SameSite=None; Secure; Partitioned"),
    ] {
        let body = json!({"token": TOKEN, "framed": framed}).to_string();
        let answer = served.send("POST", "/v1/session", &proxied, &body).await;
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.starts_with("rollcage_token="), "{cookie}");
        assert!(cookie.ends_with(expected), "{cookie}");
        assert!(cookie.contains("; Path=/; Max-Age=2592000;"), "{cookie}");
    }
}

#[tokio::test]
async fn wrong_tokens_are_refused_and_soon_not_even_looked_at() {
    let served = Served::with(with_token()).await;
    for _ in 0..10 {
        let answer = served.sign_in("a-token-that-is-wrong", &[]).await;
        assert_eq!(answer.status(), 401);
        assert!(answer.headers().get("set-cookie").is_none());
        let text = answer.text().await.unwrap();
        assert!(text.contains("wrong_token") && !text.contains("is-wrong"));
    }
    let late = served.sign_in(TOKEN, &[]).await;
    assert_eq!(late.status(), 429);
    assert!(late.headers().contains_key("retry-after"));
    // Who says to come from elsewhere does not, and a header is no way around.
    let other = served.sign_in(TOKEN, &[("x-forwarded-for", "5.6.7.8")]);
    assert_eq!(other.await.status(), 429);
    let header = [("x-api-key", TOKEN)];
    assert_eq!(served.status_with("GET", "/metadata", &header).await, 429);
}

#[tokio::test]
async fn wrong_tokens_in_headers_count_as_wrong_sign_ins_do() {
    let served = Served::with(with_token()).await;
    let right = ("authorization", "Bearer a-token-that-is-long");
    assert_eq!(served.status_with("GET", "/metadata", &[right]).await, 200);
    let names = [
        ("/metadata", "x-api-key"),
        ("/v1/rollouts", "authorization"),
    ];
    for (path, name) in names.iter().cycle().take(10) {
        let wrong = [(*name, "Bearer a-token-that-is-wrong")];
        assert_eq!(served.status_with("GET", path, &wrong).await, 401);
    }
    let wrong = [("x-api-key", "a-token-that-is-wrong")];
    let late = served.send("GET", "/v1/rollouts", &wrong, "").await;
    assert_eq!(late.status(), 429);
    assert!(late.headers().contains_key("retry-after"));
    assert_eq!(read(late).await["error"]["code"], "too_many_tries");
    assert_eq!(served.sign_in(TOKEN, &[]).await.status(), 429);
    // A program that was right from there is not locked out by another that is wrong.
    assert_eq!(served.status_with("GET", "/metadata", &[right]).await, 200);
}

#[tokio::test]
async fn behind_a_proxy_that_is_named_each_client_counts_for_itself() {
    let served = Served::with(ServerOptions {
        proxies: vec!["127.0.0.1/32".parse().unwrap()],
        ..with_token()
    })
    .await;
    let from = |address| ("x-forwarded-for", address);
    for _ in 0..10 {
        let wrong = [from("9.9.9.9")];
        let answer = served.sign_in("a-token-that-is-wrong", &wrong).await;
        assert_eq!(answer.status(), 401);
    }
    for (client, expected) in [
        ("9.9.9.9", 429),
        ("5.6.7.8, 9.9.9.9", 429),
        ("5.6.7.8", 200),
    ] {
        let answer = served.sign_in(TOKEN, &[from(client)]).await;
        assert_eq!(answer.status(), expected, "{client}");
    }
}

/// A page of some other program on this machine.
#[tokio::test]
async fn a_page_of_another_port_does_nothing_unless_its_origin_is_allowed() {
    let call = json!({"jsonrpc": "2.0", "method": "openenv/session/create", "params": {}, "id": 1});
    let call = call.to_string();
    let json = ("content-type", "application/json");
    let other = ("origin", "http://127.0.0.1:1");
    for allowed in [false, true] {
        let origins = allowed.then(|| other.1.parse().unwrap());
        let served = Served::with(ServerOptions {
            origins: origins.into_iter().collect(),
            ..options()
        })
        .await;
        let own = format!("http://{}", served.address);
        let (mcp, ws) = if allowed { (200, 101) } else { (403, 403) };
        for (origin, mcp, ws) in [(other, mcp, ws), (("origin", own.as_str()), 200, 101)] {
            assert_eq!(upgrade(&served, &[origin]).await, ws, "{origin:?}");
            let answer = served.send("POST", "/mcp", &[origin, json], &call).await;
            assert_eq!(answer.status(), mcp, "{origin:?}");
        }
        // What a page can send without asking, and what has no type at all.
        for headers in [&[("content-type", "text/plain")][..], &[]] {
            let answer = served.send("POST", "/mcp", headers, &call).await;
            assert_eq!(answer.status(), 415, "{headers:?}");
        }
    }
}

#[tokio::test]
async fn a_sign_in_is_json_and_its_errors_repeat_nothing() {
    let served = Served::with(with_token()).await;
    let form = [("content-type", "text/plain")];
    let body = json!({ "token": TOKEN }).to_string();
    let answer = served.send("POST", "/v1/session", &form, &body).await;
    assert_eq!(answer.status(), 415);
    let json = [("content-type", "application/json")];
    for body in ["{\"token\": \"sekrit", "{\"sekrit\": 1}", "{\"token\": 7}"] {
        let answer = served.send("POST", "/v1/session", &json, body).await;
        assert_eq!(answer.status(), 400);
        assert!(!answer.text().await.unwrap().contains("sekrit"));
    }
    let other = [json[0], ("sec-fetch-site", "cross-site")];
    for method in ["POST", "DELETE"] {
        assert_eq!(served.status_with(method, "/v1/session", &other).await, 401);
    }
}

/// The headers of a request, the statuses of reading and of changing something.
type Case<'a> = (&'a [(&'a str, &'a str)], u16, u16);

#[tokio::test]
async fn a_cookie_counts_for_our_own_page_only() {
    let served = Served::with(with_token()).await;
    let cookie = served.cookie().await;
    let own = format!("http://{}", served.address);
    let cases: &[Case<'_>] = &[
        (&[("sec-fetch-site", "same-origin")], 200, 200),
        (&[("sec-fetch-site", "none")], 200, 403),
        (&[("sec-fetch-site", "same-site")], 403, 403),
        (&[("sec-fetch-site", "cross-site")], 403, 403),
        (&[("origin", &own)], 200, 200),
        (&[("origin", "http://127.0.0.1:1")], 403, 403),
        (&[("origin", "https://evil.example")], 403, 403),
        (&[("origin", "null")], 403, 403),
        (
            &[
                ("origin", "https://a.example"),
                ("x-forwarded-host", "a.example"),
            ],
            // Behind a proxy on the default port the cookie has another name, so this one is not seen.
            401,
            401,
        ),
        (
            &[
                ("sec-fetch-site", "cross-site"),
                ("authorization", "Bearer a-token-that-is-long"),
            ],
            200,
            200,
        ),
        // Over plain HTTP browsers say nothing about what only reads.
        (&[], 200, 403),
    ];
    for (headers, reading, changing) in cases {
        let headers = [&[("cookie", cookie.as_str())], *headers].concat();
        let got = served.status_with("GET", "/web/state", &headers).await;
        assert_eq!(got, *reading, "GET {headers:?}");
        let got = served.status_with("POST", "/web/reset", &headers).await;
        assert_eq!(got, *changing, "POST {headers:?}");
    }
    let foreign = [
        ("cookie", cookie.as_str()),
        ("sec-fetch-site", "cross-site"),
    ];
    let refused = served.send("POST", "/v1/rollouts", &foreign, "").await;
    assert_eq!(read(refused).await["error"]["code"], "forbidden");
    // The page itself is shown wherever the link to it was.
    assert_eq!(served.status_with("GET", "/", &foreign).await, 307);
    let wrong = [
        ("cookie", "rollcage_token_1=eA"),
        ("sec-fetch-site", "same-origin"),
    ];
    assert_eq!(served.status_with("GET", "/web/state", &wrong).await, 401);
}

async fn upgrade(served: &Served, headers: &[(&str, &str)]) -> u16 {
    let handshake = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let headers = [&handshake, headers].concat();
    served.status_with("GET", "/ws", &headers).await
}

#[tokio::test]
async fn a_websocket_with_the_cookie_alone_is_our_own_pages() {
    let served = Served::with(with_token()).await;
    let cookie = served.cookie().await;
    let own = format!("http://{}", served.address);
    let with = async |headers: &[(&str, &str)]| {
        let headers = [&[("cookie", cookie.as_str())], headers].concat();
        upgrade(&served, &headers).await
    };
    assert_eq!(with(&[("origin", &own)]).await, 101);
    assert_eq!(with(&[("origin", "https://evil.example")]).await, 403);
    assert_eq!(with(&[("sec-fetch-site", "none")]).await, 403);
    assert_eq!(with(&[]).await, 403);
    let bearer = ("authorization", "Bearer a-token-that-is-long");
    assert_eq!(upgrade(&served, &[bearer]).await, 101);
}

#[tokio::test]
async fn other_pages_change_nothing_on_a_server_that_is_open_to_anyone() {
    let served = Served::with(open()).await;
    let session = read(served.get("/v1/session").await).await;
    let expected = json!({"access": "open", "signed_in": true, "owner": "local"});
    assert_eq!(session, expected);
    let own = format!("http://{}", served.address);
    let cases: &[Case<'_>] = &[
        (&[], 200, 200),
        (&[("origin", &own)], 200, 200),
        (&[("sec-fetch-site", "same-origin")], 200, 200),
        (&[("sec-fetch-site", "none")], 200, 200),
        (&[("sec-fetch-site", "cross-site")], 200, 403),
        (&[("sec-fetch-site", "same-site")], 200, 403),
        (&[("origin", "https://evil.example")], 200, 403),
        (&[("origin", "null")], 200, 403),
    ];
    for (headers, reading, changing) in cases {
        let got = served.status_with("GET", "/web/state", headers).await;
        assert_eq!(got, *reading, "GET {headers:?}");
        let got = served.status_with("POST", "/web/reset", headers).await;
        assert_eq!(got, *changing, "POST {headers:?}");
    }
    assert_eq!(upgrade(&served, &[("origin", &own)]).await, 101);
    assert_eq!(
        upgrade(&served, &[("origin", "https://evil.example")]).await,
        403
    );
    // A page that gave its own name our address is our own page to the browser; the operator's name is ours.
    for (host, expected) in [("evil.example:8000", 403), ("cage.example:8000", 200)] {
        let origin = format!("http://{host}");
        let own = [
            ("host", host),
            ("origin", origin.as_str()),
            ("sec-fetch-site", "same-origin"),
            ("x-forwarded-host", "cage.example"),
        ];
        for (method, path) in [
            ("GET", "/web/state"),
            ("POST", "/web/reset"),
            ("GET", "/web/"),
        ] {
            let got = served.status_with(method, path, &own).await;
            assert_eq!(got, expected, "{method} {path} {host}");
        }
    }
    // There is nothing to sign in to.
    let answer = served.sign_in("anything", &[]).await;
    assert!(answer.headers().get("set-cookie").is_none());
    assert_eq!(read(answer).await, expected);
}

#[tokio::test]
async fn a_page_on_loopback_works_and_others_are_kept_out() {
    let served = Served::start().await;
    assert_eq!(served.get("/").await.status(), 307);
    let rebound = [("host", "evil.example")];
    for path in ["/", "/web/", "/v1/session"] {
        assert_eq!(served.status_with("GET", path, &rebound).await, 403);
    }
    let own = format!("http://{}", served.address);
    let own = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(served.status_with("POST", "/web/reset", &own).await, 200);
    let other = [("origin", "https://evil.example")];
    assert_eq!(served.status_with("POST", "/web/reset", &other).await, 403);
}

#[tokio::test]
async fn without_the_page_nothing_of_it_is_there() {
    let served = Served::with(ServerOptions {
        page: None,
        ..options()
    })
    .await;
    for path in ["/", "/web", "/web/", "/web/state", "/web/metadata", "/docs"] {
        assert_eq!(served.get(path).await.status(), 404, "{path}");
    }
    assert_eq!(served.status_with("POST", "/web/reset", &[]).await, 404);
    assert_eq!(served.get("/metadata").await.status(), 200);
    let locked = Served::with(ServerOptions {
        page: None,
        ..with_token()
    })
    .await;
    assert_eq!(locked.get("/web/").await.status(), 401);
}

#[tokio::test]
async fn it_is_found_below_a_prefix_that_the_proxy_leaves() {
    let served = Served::with(ServerOptions {
        path_prefix: Some("/tools/cage".parse().unwrap()),
        ..with_token()
    })
    .await;
    for (path, location) in [
        ("/tools/cage", "cage/"),
        ("/tools/cage/", "web/"),
        ("/tools/cage/web", "web/"),
        ("/", "web/"),
    ] {
        let response = served.get(path).await;
        assert_eq!(response.status(), 307, "{path}");
        assert_eq!(response.headers()["location"], location, "{path}");
    }
    // What needs a token needs it there, too.
    for path in ["/metadata", "/tools/cage/metadata", "/tools/cage/web/state"] {
        assert_eq!(served.get(path).await.status(), 401, "{path}");
    }
    let token = [("x-api-key", TOKEN)];
    let state = served.status_with("GET", "/tools/cage/web/state", &token);
    assert_eq!(state.await, 200);
    assert_eq!(served.get("/tools/cage/health").await.status(), 200);
    assert_eq!(served.get("/tools/cagehealth").await.status(), 401);
}

#[tokio::test]
async fn no_browser_guesses_types_or_keeps_answers() {
    let served = Served::start().await;
    for path in ["/", "/v1/session", "/metadata", "/nope"] {
        let response = served.get(path).await;
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    }
    let session = served.get("/v1/session").await;
    assert_eq!(session.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn openenvs_routes_of_the_page_keep_one_environment_per_owner() {
    let served = Served::start().await;
    let metadata = read(served.get("/web/metadata").await).await;
    assert_eq!(metadata["name"], "rollcage");
    let reset = served
        .post("/web/reset", &json!({"episode_id": "e1"}))
        .await;
    let reset = read(reset).await;
    assert_eq!(
        (&reset["done"], &reset["reward"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(reset["observation"]["metadata"]["status"], "ready");
    for arguments in [json!({"message": "hi"}), json!("{\"message\": \"hi\"}")] {
        let action = json!({"action": {"tool_name": "echo", "arguments": arguments}});
        let step = read(served.post("/web/step", &action).await).await;
        assert_eq!(step["observation"]["result"]["data"], "hi", "{step}");
        assert!(step.get("metadata").is_none());
    }
    let state = read(served.get("/web/state").await).await;
    assert_eq!(
        (&state["episode_id"], &state["step_count"]),
        (&json!("e1"), &json!(2))
    );
    let wrong = served.post("/web/step", &json!({"action": {"x": 1}})).await;
    assert_eq!(wrong.status(), 422);
}
