use std::io::Read;

use axum::body::Bytes;

use super::*;

const SCRIPT: &[u8] = &[b'x'; 5000];

fn page(ancestors: &[&str]) -> Page {
    let files: &[(&str, &'static [u8])] = &[
        ("index.html", b"<!doctype html>"),
        ("assets/app-1a2b.js", SCRIPT),
        ("logo.png", SCRIPT),
        ("docs/index.html", b"docs"),
    ];
    let frame_ancestors = ancestors.iter().map(|site| site.parse().unwrap()).collect();
    Page::of(Assets::of(files), &PageOptions { frame_ancestors })
}

async fn ask(page: &Page, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Response> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    page.answer(request).await.ok()
}

async fn get(path: &str, headers: &[(&str, &str)]) -> Response {
    ask(&page(&[]), "GET", path, headers).await.unwrap()
}

async fn body(response: Response) -> Bytes {
    let read = axum::body::to_bytes(response.into_body(), 100_000).await;
    read.unwrap()
}

#[track_caller]
fn value<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map(|value| value.to_str().unwrap()).unwrap_or("none")
}

#[tokio::test]
async fn its_address_is_found_below_any_prefix() {
    for path in ["/", "/web", "/?__theme=dark"] {
        let response = get(path, &[]).await;
        assert_eq!(response.status(), 307, "{path}");
        let location = value(&response, "location");
        assert_eq!(location, path.replace("/web", "/").replacen('/', "web/", 1));
        // As a browser does it, of the page as a proxy shows it.
        let seen = reqwest::Url::parse(&format!("https://a.example/tool{path}")).unwrap();
        let led_to = seen.join(location).unwrap();
        assert_eq!(led_to.path(), "/tool/web/");
    }
    assert_eq!(body(get("/web/", &[]).await).await, "<!doctype html>");
}

#[tokio::test]
async fn files_have_their_type_and_are_kept_by_browsers() {
    let index = get("/web/", &[]).await;
    assert_eq!(value(&index, "content-type"), "text/html; charset=utf-8");
    assert_eq!(value(&index, "cache-control"), "no-cache");
    let script = get("/web/assets/app-1a2b.js", &[]).await;
    assert_eq!(
        value(&script, "content-type"),
        "text/javascript; charset=utf-8"
    );
    assert_eq!(
        value(&script, "cache-control"),
        "public, max-age=31536000, immutable"
    );
    assert_eq!(value(&script, "x-content-type-options"), "nosniff");
    let tag = value(&script, "etag").to_owned();
    assert_eq!(body(script).await, SCRIPT);
    let known = get("/web/assets/app-1a2b.js", &[("if-none-match", &tag)]).await;
    assert_eq!(
        (known.status().as_u16(), value(&known, "etag")),
        (304, &*tag)
    );
    assert!(body(known).await.is_empty());
    let other = get("/web/assets/app-1a2b.js", &[("if-none-match", "\"0\"")]).await;
    assert_eq!(other.status(), 200);
}

#[tokio::test]
async fn text_is_compressed_for_those_who_take_it() {
    let gzip = [("accept-encoding", "gzip, br")];
    let page = page(&[]);
    // The second one is the kept one.
    for _ in 0..2 {
        let script = ask(&page, "GET", "/web/assets/app-1a2b.js", &gzip)
            .await
            .unwrap();
        assert_eq!(value(&script, "content-encoding"), "gzip");
        assert_eq!(value(&script, "vary"), "accept-encoding");
        assert!(value(&script, "etag").ends_with("-gzip\""));
        let packed = body(script).await;
        assert!(packed.len() < 200);
        let mut text = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&packed[..]);
        decoder.read_to_end(&mut text).unwrap();
        assert_eq!(text, SCRIPT);
    }
    let plain = ask(&page, "GET", "/web/assets/app-1a2b.js", &[])
        .await
        .unwrap();
    assert_eq!(value(&plain, "content-encoding"), "none");
    assert_eq!(value(&plain, "vary"), "accept-encoding");
    let picture = ask(&page, "GET", "/web/logo.png", &gzip).await.unwrap();
    assert_eq!(value(&picture, "content-encoding"), "none");
}

#[tokio::test]
async fn no_path_leads_out_of_the_files() {
    for path in [
        "/web/nothing.js",
        "/web/assets",
        "/web/assets/",
        "/web//index.html",
        "/web/../Cargo.toml",
        "/web/%2e%2e/Cargo.toml",
        "/web/assets/../../src/main.tsx",
        "/web/..%2f..%2fetc/passwd",
        "/web/%00",
        "/web/index.html%00.js",
    ] {
        let response = get(path, &[]).await;
        assert_eq!(response.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn other_routes_are_not_the_pages() {
    let page = page(&[]);
    for path in [
        "/health",
        "/v1/rollouts",
        "/webs",
        "/web/state",
        "/web/metadata",
    ] {
        assert!(ask(&page, "GET", path, &[]).await.is_none(), "{path}");
    }
    assert!(ask(&page, "POST", "/web/step", &[]).await.is_none());
    let wrong = ask(&page, "POST", "/web/", &[]).await.unwrap();
    assert_eq!(wrong.status(), 405);
    assert_eq!(body(get("/docs", &[]).await).await, "docs");
    let head = ask(&page, "HEAD", "/web/", &[]).await.unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn it_loads_its_own_files_only_and_says_who_may_show_it() {
    let own = get("/web/", &[("host", "localhost:8000")]).await;
    let policy = value(&own, "content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(policy.ends_with("; frame-ancestors 'self'"), "{policy}");
    assert!(!policy.contains("unsafe"));
    assert_eq!(value(&own, "referrer-policy"), "no-referrer");
    assert_eq!(value(&own, "cross-origin-opener-policy"), "same-origin");
    let proxied = get("/web/", &[("x-forwarded-proto", "https")]).await;
    assert_eq!(value(&proxied, "cross-origin-opener-policy"), "same-origin");
    let plain = get("/web/", &[("host", "cage.example:8000")]).await;
    assert_eq!(value(&plain, "cross-origin-opener-policy"), "none");
    let framed = page(&["https://huggingface.co", "https://*.hf.space"]);
    let framed = ask(&framed, "GET", "/web/", &[("host", "localhost")])
        .await
        .unwrap();
    let policy = value(&framed, "content-security-policy");
    let expected = "frame-ancestors 'self' https://huggingface.co https://*.hf.space";
    assert!(policy.ends_with(expected), "{policy}");
    assert_eq!(value(&framed, "cross-origin-opener-policy"), "none");
}
