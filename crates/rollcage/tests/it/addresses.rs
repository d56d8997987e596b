//! A URL that somebody else named is checked by every connection, not only when it is given.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::Plan;
use futures::future::BoxFuture;
use rollcage_model::ending::Ended;
use rollcage_model::task::mcp::{McpServer, McpServers};
use rollcage_proxy::outbound::{Guard, Resolver};
use rollcage_proxy::remote::RemoteMcpServers;
use rollcage_testkit::upstream::Upstream;
use tokio_util::sync::CancellationToken;

use crate::support::{ASK, Home, run_one, says, task};

/// Says what it is told to, and counts how often it is asked.
#[derive(Debug)]
struct Names {
    answer: Mutex<&'static str>,
    /// From this query on the name is somewhere else.
    moves_at: usize,
    asked: AtomicUsize,
}

impl Resolver for Names {
    fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = match number < self.moves_at {
            true => *self.answer.lock().unwrap(),
            false => "10.11.12.13",
        };
        Box::pin(async move { Ok(vec![answer.parse().unwrap()]) })
    }
}

fn names(moves_at: usize) -> Arc<Names> {
    Arc::new(Names {
        answer: Mutex::new("127.0.0.1"),
        moves_at,
        asked: AtomicUsize::new(0),
    })
}

fn guard(names: &Arc<Names>) -> Arc<Guard> {
    let allowed = vec!["127.0.0.1".parse().unwrap()];
    Guard::with_resolver(allowed, Arc::clone(names) as Arc<dyn Resolver>)
}

fn renamed(upstream: &Upstream) -> String {
    upstream.base_url().replace("127.0.0.1", "model.invalid")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checked_address_is_the_one_that_is_connected_to() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let names = names(usize::MAX);
    let home = Home::new();
    let mut plan = home.plan(task(&[]), ASK, &renamed(&upstream));
    plan.endpoint.guard = Some(guard(&names));
    let engine = home.engine().await;
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    assert_eq!(result.ended, Ended::Completed, "{:?}", result.error);
    assert_eq!(upstream.requests().len(), 1);
    // One look for the first connection, which asks whether anybody is there, and one for the call's.
    assert_eq!(names.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_changes_its_address_ends_the_rollout_at_once() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let names = names(1);
    let home = Home::new();
    let mut plan = home.plan(task(&[]), ASK, &renamed(&upstream));
    plan.endpoint.guard = Some(guard(&names));
    let engine = home.engine().await;
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    let said = format!("{:?} {}", result.error, result.proxy_log_tail);
    assert!(said.contains("--allow-url model.invalid"), "{said}");
    assert_eq!(upstream.requests().len(), 0);
    // It is not tried again.
    assert_eq!(names.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_whose_address_changes_is_not_followed() {
    const CALL: &str = r#"
        exec 3<>/dev/tcp/127.0.0.1/7000
        printf 'POST /mcp/docs HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}' "$KEY" >&3
        cat <&3 > said"#;
    for (moves_at, expected) in [(usize::MAX, "200 OK"), (0, "--allow-url model.invalid")] {
        let upstream = Upstream::start(|_, _| says("ok")).unwrap();
        let names = names(moves_at);
        let mut task = task(&[]);
        let server = McpServer {
            url: Some(renamed(&upstream)),
            ..McpServer::default()
        };
        task.mcp = McpServers::from([("docs".to_owned(), server)]);
        let mut mcp = RemoteMcpServers::take(&mut task.mcp, |_| None).unwrap();
        mcp.guard(&BTreeSet::from(["docs".to_owned()]), &guard(&names));
        let home = Home::new();
        let plan = Plan {
            mcp,
            ..home.plan(task, CALL, upstream.base_url())
        };
        let engine = home.engine().await;
        let result = run_one(&engine, plan, &CancellationToken::new()).await;
        engine.close().await;
        let said = &result.files["/home/user/workdir/said"];
        assert!(said.contains(expected), "{said}");
    }
}
