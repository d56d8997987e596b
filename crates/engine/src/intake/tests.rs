use std::sync::Arc;

use rollcage_endpoints::choice::EndpointChoice;
use rollcage_model::task::Task;
use rollcage_model::task::mcp::McpServer;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::Guard;
use rollcage_proxy::secret::Secret;

use super::*;

const OWN_KEY: &str = "sk-our-own-0123456789";
const THEIR_KEY: &str = "sk-their-own-987654321";

fn catalogue() -> Catalogue {
    let variable: Lookup<String> = Arc::new(|name| match name {
        "OPENAI_API_KEY" | "MY_KEY" => Some(OWN_KEY.to_owned()),
        "TOKEN" => Some("t0ken-of-the-operator".to_owned()),
        _ => None,
    });
    Catalogue {
        variables: Arc::clone(&variable),
        keys: variable,
        ..Catalogue::built_in()
    }
}

fn task() -> Task {
    Task {
        instruction: "go".to_owned(),
        ..Task::default()
    }
}

/// A task with an MCP server that is asked with this header.
fn task_with_header(value: &str) -> Task {
    let server = McpServer {
        url: Some("http://127.0.0.1:9/mcp".to_owned()),
        headers: [("Authorization".to_owned(), value.to_owned())].into(),
        ..McpServer::default()
    };
    Task {
        mcp: [("docs".to_owned(), server)].into(),
        ..task()
    }
}

fn openai(task: Task) -> RolloutRequest {
    RolloutRequest {
        endpoint: EndpointOptions {
            kind: Some("openai".to_owned()),
            model: Some("m".to_owned()),
            ..EndpointOptions::default()
        },
        ..RolloutRequest::new(task)
    }
}

#[track_caller]
fn endpoint_of(request: RolloutRequest) -> Endpoint {
    match resolve(request, &catalogue()).map(|resolved| resolved.endpoint) {
        Ok(EndpointChoice::Url(endpoint)) => endpoint,
        Ok(other) => panic!("{other:?}"),
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn refused(request: RolloutRequest) -> RequestError {
    match resolve(request, &catalogue()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error,
    }
}

fn written_and_read(request: &RolloutRequest) -> RolloutRequest {
    let text = serde_json::to_string(request).unwrap();
    for secret in [OWN_KEY, THEIR_KEY, "t0ken"] {
        assert!(!text.contains(secret), "{text}");
    }
    serde_json::from_str(&text).unwrap()
}

#[test]
fn what_is_not_said_has_one_default() {
    let resolved = resolve(openai(task()), &catalogue()).unwrap();
    assert_eq!(resolved.agent.name(), "opencode");
    assert_eq!(resolved.settings.tokens_max, Some(4096));
    assert_eq!(resolved.settings.top_logprobs, 5);
    assert_eq!(
        resolved.settings.upstream_patience,
        catalogue().upstream_patience
    );
    assert_eq!((resolved.owner, resolved.group), (None, None));
}

#[test]
fn a_request_is_written_down_without_its_secrets() {
    let mut request = openai(task_with_header("Bearer t0ken-written-out"));
    request.endpoint.key = Some(KeySource::new(Secret::new(THEIR_KEY)));
    let file = Upload::File {
        content: vec![0, 159, 146],
        is_executable: true,
    };
    request.uploads.insert("a".to_owned(), file);
    assert!(!format!("{request:?}").contains("t0ken"));
    let read = written_and_read(&request);
    assert_eq!(read.uploads, request.uploads);
    assert_eq!(read.task, request.task);
    assert_eq!(
        endpoint_of(request).key.map(|key| key.expose().to_owned()),
        Some(THEIR_KEY.to_owned())
    );
    assert!(matches!(refused(read), RequestError::KeyLost));

    let lost = written_and_read(&openai(task_with_header("Bearer t0ken-written-out")));
    assert!(matches!(refused(lost), RequestError::HeadersLost));
}

#[test]
fn what_only_names_a_variable_survives_being_written_down() {
    let mut request = openai(task_with_header("Bearer ${TOKEN}"));
    request.endpoint.key = Some(KeySource::Variable("MY_KEY".to_owned()));
    let endpoint = endpoint_of(written_and_read(&request));
    assert_eq!(
        endpoint.key.map(|key| key.expose().to_owned()),
        Some(OWN_KEY.to_owned())
    );
    request.endpoint.key = Some(KeySource::Variable("NOT_SET".to_owned()));
    assert!(matches!(refused(request), RequestError::KeyVariable(_)));
}

#[test]
fn our_keys_do_not_go_to_urls_that_clients_name() {
    let at = |origin| {
        let mut request = openai(task());
        request.endpoint.base_url = Some("http://elsewhere.example/v1".to_owned());
        RolloutRequest { origin, ..request }
    };
    let client = || RequestOrigin::Client {
        mcp: Default::default(),
        is_unchanged: false,
    };
    assert!(matches!(refused(at(client())), RequestError::Endpoint(_)));
    assert!(endpoint_of(at(RequestOrigin::Operator)).key.is_some());

    let guarded = Catalogue {
        guard: Some(Guard::new(Vec::new())),
        ..catalogue()
    };
    let named = |origin| {
        let mut request = at(origin);
        request.endpoint.key = Some(KeySource::new(Secret::new(THEIR_KEY)));
        match resolve(request, &guarded).map(|resolved| resolved.endpoint) {
            Ok(EndpointChoice::Url(endpoint)) => endpoint.guard.is_some(),
            _ => panic!("not resolved"),
        }
    };
    assert_eq!(
        (named(client()), named(RequestOrigin::Operator)),
        (true, false)
    );
}

#[test]
fn a_budget_in_dollars_needs_a_price() {
    let mut request = openai(task());
    request.task.budget.usd = Some(1.0);
    assert!(matches!(
        refused(request.clone()),
        RequestError::NoPrice { .. }
    ));
    // The scripted model is free.
    request.endpoint.kind = Some("scripted".to_owned());
    request.task.solution = vec![rollcage_model::script::Step::shell("true")];
    assert!(resolve(request, &catalogue()).is_ok());
}

#[test]
fn invalid_requests_are_refused_before_anything_is_done() {
    let with = |change: fn(&mut RolloutRequest)| {
        let mut request = openai(task());
        change(&mut request);
        refused(request).to_string()
    };
    for (error, expect) in [
        (
            with(|it| it.agent = "nobody".to_owned()),
            "unknown agent `nobody`",
        ),
        (
            with(|it| it.endpoint.kind = Some("nowhere".to_owned())),
            "unknown endpoint kind",
        ),
        (
            with(|it| it.endpoint = EndpointOptions::default()),
            "no `solution`",
        ),
        (
            with(|it| it.task.instruction.clear()),
            "`instruction` is missing",
        ),
        (with(|it| it.options.top_logprobs = 21), "between 0 and 20"),
        (
            with(|it| it.options.sampling = Some("luck".to_owned())),
            "auto or agent",
        ),
        (
            with(|it| it.options.constrained = Some("x".to_owned())),
            "refuse, remove or keep",
        ),
        (
            with(|it| it.options.upstream_patience_s = Some(-1.0)),
            "not below 0",
        ),
        (with(|it| it.options.temperature = Some(0.0)), "above 0"),
        (
            with(|it| it.group = Some(String::new())),
            "1 to 200 characters",
        ),
        (
            with(|it| drop(it.labels.insert("a".to_owned(), "x".repeat(201)))),
            "none of them longer than 200 characters",
        ),
    ] {
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn a_client_cannot_show_directories_of_the_machine() {
    let mut request = openai(task());
    request.mounts = vec![HostMount::parse("/usr/bin:/data").unwrap()];
    assert_eq!(written_and_read(&request).mounts, request.mounts);
    assert!(resolve(request.clone(), &catalogue()).is_ok());
    request.origin = RequestOrigin::Client {
        mcp: Default::default(),
        is_unchanged: true,
    };
    assert!(matches!(refused(request), RequestError::Mounts));
}

#[test]
fn a_servers_range_of_rewards_is_for_tasks_that_name_none() {
    let catalogue = Catalogue {
        reward_range: Some([0.0, 1.0]),
        ..catalogue()
    };
    let range = |own| {
        let mut task = task();
        task.reward_range = own;
        resolve(openai(task), &catalogue).unwrap().task.reward_range
    };
    assert_eq!(range(None), Some([0.0, 1.0]));
    assert_eq!(range(Some([-1.0, 2.0])), Some([-1.0, 2.0]));
}

#[test]
fn an_upload_is_checked_like_a_file_of_the_task() {
    let mut request = openai(task());
    let path = "/home/user/logs/verifier/reward.txt".to_owned();
    request.uploads.insert(path, Upload::file("1"));
    assert!(matches!(refused(request), RequestError::Task(_)));
    let mut request = openai(task());
    request.task.test_script = Some("x".to_owned());
    let path = "/home/user/tests/test.sh".to_owned();
    request.uploads.insert(path, Upload::file("y"));
    assert!(matches!(refused(request), RequestError::Task(_)));
}
