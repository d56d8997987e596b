use std::path::Path;

use futures::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::fake::{Behaviour, FREE_PORT, FakePlace, Stranger};

const DEADLINE: Duration = Duration::from_secs(5);
const PASSWORD: &str = "correct horse";

fn options(port: u16, directory: &Path) -> ServerOptions {
    ServerOptions {
        argv: ["serve", "--port", "{port}"].map(str::to_owned).to_vec(),
        env: [("HOME".to_owned(), "/home/x".to_owned())].into(),
        cwd: String::new(),
        port,
        credentials: Credentials {
            username: "opencode".to_owned(),
            password: PASSWORD.to_owned(),
        },
        deadline: DEADLINE,
        poll: Duration::from_millis(50),
        silence_max: SILENCE_MAX,
        log: directory.join("serve.log"),
    }
}

struct Case {
    place: Arc<FakePlace>,
    server: Arc<LiveServer>,
    _directory: tempfile::TempDir,
}

fn case(port: u16, behaviours: impl IntoIterator<Item = Behaviour>) -> Case {
    let directory = tempfile::tempdir().unwrap();
    let place = FakePlace::with(behaviours);
    let options = options(port, directory.path());
    Case {
        server: LiveServer::new(Arc::clone(&place) as Arc<dyn Place>, options),
        place,
        _directory: directory,
    }
}

async fn ten_at_once(server: &LiveServer) -> Vec<Result<bool, String>> {
    let asked = (0..10).map(|_| server.ensure_running());
    let results = join_all(asked).await.into_iter();
    results
        .map(|result| result.map_err(|error| error.to_string()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn ten_starts_at_once_are_one() {
    let case = case(0, [Behaviour::HealthyAfter(Duration::from_secs(2))]);
    let results = ten_at_once(&case.server).await;
    let mine = results.iter().filter(|result| **result == Ok(true));
    assert_eq!(mine.count(), 1, "{results:?}");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let [command] = &case.place.spawned()[..] else {
        panic!("one process");
    };
    assert_eq!(command.argv, ["serve", "--port", "5000"]);
    assert!(!command.argv.concat().contains(PASSWORD));
    assert_eq!(command.env["OPENCODE_SERVER_PASSWORD"], PASSWORD);
    let url = case.server.base_url();
    assert_eq!(url.as_deref(), Some("http://127.0.0.1:5000"));
    let version = Some("fake".to_owned());
    assert_eq!(case.server.health().await, Health::Healthy { version });
    assert!(!case.server.ensure_running().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_start_past_its_deadline_leaves_no_process() {
    for slow in [
        Behaviour::Hangs,
        Behaviour::HealthyAfter(Duration::from_secs(9)),
    ] {
        let case = case(0, [slow]);
        let begun = Instant::now();
        let results = ten_at_once(&case.server).await;
        let expect = Err("the agent's server was not healthy within 5 s".to_owned());
        assert_eq!(results, vec![expect; 10]);
        assert_eq!(begun.elapsed(), DEADLINE);
        assert!(!case.place.is_any_alive());
        assert_eq!(case.place.spawned().len(), 1, "all waited for the same");
        assert_eq!(case.server.base_url(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_said_before_its_end_is_told_without_the_password() {
    let said = "Error: no\n\nwith correct horse\n";
    let case = case(0, [Behaviour::Exits(said, 1)]);
    let error = case.server.ensure_running().await.unwrap_err();
    let expect = "the agent's server ended at its start (exit code 1): Error: no\nwith [password]";
    assert_eq!(error.to_string(), expect);
}

#[tokio::test(start_paused = true)]
async fn a_port_that_a_stranger_has_is_taken_and_the_stranger_stays() {
    for stranger in [Stranger::Refuses, Stranger::Silent] {
        let case = case(4096, []);
        case.place.add_stranger(4096, stranger);
        let error = case.server.ensure_running().await.unwrap_err();
        assert!(matches!(error, StartError::PortTaken(4096)), "{error}");
        assert_eq!(case.place.spawned().len(), 0);
    }
    // It came after we looked, and answers in our server's place or made it exit.
    for ours in [
        Behaviour::HealthyAfter(Duration::ZERO),
        Behaviour::Exits("ServeError", 1),
    ] {
        let case = case(4096, [ours]);
        case.place.add_late_stranger(4096, Stranger::Refuses);
        let error = case.server.ensure_running().await.unwrap_err();
        assert!(matches!(error, StartError::PortTaken(4096)), "{error}");
        assert!(!case.place.is_any_alive());
    }
}

#[tokio::test(start_paused = true)]
async fn where_any_port_will_do_the_next_one_is_tried() {
    let case = case(0, []);
    case.place.add_stranger(FREE_PORT, Stranger::Silent);
    case.place
        .add_late_stranger(FREE_PORT + 1, Stranger::Refuses);
    assert!(case.server.ensure_running().await.unwrap());
    assert_eq!(case.server.port(), Some(FREE_PORT + 2));
    assert_eq!(case.place.alive_max(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hung_server_is_replaced_by_exactly_one() {
    let case = case(0, []);
    case.server.ensure_running().await.unwrap();
    let hung = case.place.latest();
    hung.is_frozen.send_replace(true);
    assert_eq!(case.server.health().await, Health::Silent);
    let guard = case.server.turn_in_progress();
    assert!(!case.server.ensure_running().await.unwrap(), "a turn");
    drop(guard);
    let results = ten_at_once(&case.server).await;
    let started = results.iter().filter(|result| **result == Ok(true));
    assert_eq!(started.count(), 1, "{results:?}");
    assert!(!hung.is_alive());
    assert_eq!((case.place.spawned().len(), case.place.alive_max()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_with_heartbeats_is_left_alone() {
    let case = case(0, []);
    case.server.ensure_running().await.unwrap();
    case.place.latest().is_slow.send_replace(true);
    for _ in 0..5 {
        assert!(!case.server.ensure_running().await.unwrap());
        tokio::time::sleep(SILENCE_MAX).await;
    }
    assert!(!case.server.reap().await);
    assert_eq!(case.place.spawned().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_ending_is_started_more_and_more_seldom() {
    let case = case(0, []);
    case.server.ensure_running().await.unwrap();
    let mut waits = Vec::new();
    let last = loop {
        let ended = case.server.ended();
        case.place.latest().kill(9);
        assert_eq!(ended.await, "signal 9");
        assert!(!case.server.is_running());
        let begun = Instant::now();
        match case.server.ensure_running().await {
            Ok(is_new) => assert!(is_new),
            Err(error) => break error,
        }
        waits.push(begun.elapsed().as_secs());
    };
    assert_eq!(waits, [0, 1, 2, 4]);
    assert!(matches!(last, StartError::BackOff(5, 8)), "{last}");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(case.server.ensure_running().await.unwrap());
    // Steady for a while: the next end is the first again.
    tokio::time::sleep(Duration::from_secs(61)).await;
    case.place.latest().kill(9);
    case.server.ended().await;
    let begun = Instant::now();
    assert!(case.server.ensure_running().await.unwrap());
    assert_eq!(begun.elapsed().as_secs(), 0);
    assert_eq!(case.place.alive_max(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_an_unhealthy_or_dead_server_is_reaped() {
    let case = case(0, []);
    assert!(!case.server.reap().await);
    case.server.ensure_running().await.unwrap();
    assert!(!case.server.reap().await);
    case.place.latest().kill(9);
    assert!(case.server.reap().await);
    assert!(!case.server.reap().await, "once");
    case.server.ensure_running().await.unwrap();
    case.place.latest().is_frozen.send_replace(true);
    assert!(case.server.reap().await);
    assert!(!case.place.is_any_alive());
    assert!(!case.server.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_starts_in_progress_and_the_server_can_be_started_again() {
    let case = case(0, [Behaviour::Hangs]);
    let asked = ten_at_once(&case.server);
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        case.server.stop().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(!case.place.is_any_alive());
    };
    let (results, ()) = tokio::join!(asked, stopping);
    let expect = Err("the live agent is stopped".to_owned());
    assert_eq!(results, vec![expect; 10]);
    assert_eq!(case.place.spawned().len(), 1);

    assert!(case.server.ensure_running().await.unwrap());
    let ended = case.server.ended();
    case.server.stop().await;
    assert_eq!(ended.await, "it does not run");
    assert!(!case.place.is_any_alive());
    case.server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_goes_on_without_its_caller_and_a_dropped_server_is_killed() {
    let case = case(0, [Behaviour::HealthyAfter(Duration::from_secs(2))]);
    let impatient = case.server.ensure_running();
    let impatient = tokio::time::timeout(Duration::from_secs(1), impatient).await;
    assert!(impatient.is_err());
    assert!(!case.server.ensure_running().await.unwrap());
    let process = case.place.latest();
    drop(case.server);
    let mut end = process.end_of();
    end.wait_for(Option::is_some).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_closed_server_lets_go_of_its_place() {
    let case = case(0, []);
    case.server.ensure_running().await.unwrap();
    case.server.close().await;
    assert_eq!(Arc::strong_count(&case.place), 1);
    assert!(!case.place.is_any_alive());
    let error = case.server.ensure_running().await.unwrap_err();
    assert!(matches!(error, StartError::Stopped), "{error}");
    case.server.stop().await;
    case.server.close().await;
}
