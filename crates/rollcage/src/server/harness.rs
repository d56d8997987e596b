//! A whole server of rollouts without sockets, for the tests of tools and API: real sandboxes, the real OpenCode, the
//! scripted endpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use rollcage_agents::bundle::Registry;
use rollcage_engine::intake::Catalogue;
use rollcage_engine::{Engine, EngineLimits, EngineOptions};
use rollcage_sandbox::local::{Local, Options};

use super::listen::BODY_LIMIT;
use super::rollouts::backend::Backend;
use super::tasks::Tasks;

/// Cargo's output directory.
fn target() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().to_owned()
}

/// A backend whose home is kept between runs, so that the agent is downloaded once. Tests separate their rollouts by
/// owner.
pub(crate) async fn backend(limits: EngineLimits) -> Arc<Backend> {
    backend_with(limits, BODY_LIMIT, |_| ()).await
}

/// Like [`backend`], with a changed catalogue.
pub(crate) async fn backend_with(
    limits: EngineLimits,
    body_limit: Duration,
    change: impl FnOnce(&mut Catalogue),
) -> Arc<Backend> {
    let mut catalogue = Catalogue::built_in();
    change(&mut catalogue);
    let program = target().join("rollcage");
    assert!(
        program.exists(),
        "`cargo build -p rollcage` makes the program that sandboxes start from"
    );
    let home = target().parent().unwrap().join("tmp/server-home");
    let sandboxes = Options {
        program,
        args: vec![crate::settings::ZYGOTE.to_owned()],
        state_dir: home.join("sandboxes"),
    };
    let options = EngineOptions {
        home,
        registry: Registry::from_environment(
            |name| std::env::var(name).ok(),
            std::env::var_os("HOME").map(PathBuf::from).as_deref(),
            std::path::Path::new("/"),
        ),
        sandboxes: Arc::new(Local::open(sandboxes).await.unwrap()),
        catalogue: Arc::new(catalogue),
        limits,
        listener: None,
        on_install: None,
    };
    let engine = Engine::open(options).await.unwrap();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let tasks = Arc::new(Tasks::read(&examples).unwrap());
    Backend::new(engine, tasks, body_limit)
}

pub(crate) fn limits() -> EngineLimits {
    EngineLimits {
        slots: 2,
        queue_max: 4,
        owner_slots: 2,
        ..EngineLimits::default()
    }
}

/// An owner that is unique to this test and run.
pub(crate) fn owner() -> String {
    rollcage_model::id::RolloutId::generate().to_string()
}

pub(crate) async fn close(backend: &Backend) {
    backend.engine.shut_down(Duration::ZERO).await;
}

/// Fails if a value is not as a schema of an OpenAPI document says, or has members that it does not name.
#[track_caller]
pub(crate) fn check_schema(document: &Value, schema: &Value, value: &Value) {
    let mut components = document["components"].clone();
    for schema in components["schemas"].as_object_mut().unwrap().values_mut() {
        let is_open = schema.get("additionalProperties").is_some();
        if schema.get("properties").is_some() && !is_open {
            schema["unevaluatedProperties"] = json!(false);
        }
    }
    let mut schema = schema.clone();
    schema["components"] = components;
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let problems: Vec<_> = validator
        .iter_errors(value)
        .map(|problem| format!("{}: {problem}", problem.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}\n{value}");
}
