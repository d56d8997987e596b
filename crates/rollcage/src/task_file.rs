//! Reads task files and what they upload.

use std::collections::BTreeMap;
use std::path::Path;

use rollcage_engine::intake::Upload;
use rollcage_model::script::Step;
use rollcage_model::task::Task;

use crate::UsageError;

mod upload;

pub(crate) use upload::add as add_upload;

/// A task and what it uploads, by path in the sandbox.
pub(crate) struct LoadedTask {
    pub(crate) task: Task,
    pub(crate) uploads: BTreeMap<String, Upload>,
}

/// A task that writes one file and ends: every agent can do it, even one without tools.
pub(crate) fn one_tool_task(purpose: &str, agent: &str) -> Task {
    let write = Step {
        write: Some("hello.txt".to_owned()),
        content: Some("hello\n".to_owned()),
        ..Step::default()
    };
    let say = Step {
        say: Some("It is there.".to_owned()),
        ..Step::default()
    };
    Task {
        id: format!("{purpose}-{agent}"),
        instruction: "Write hello.txt with one line: hello".to_owned(),
        verify: vec!["grep -qx hello hello.txt".to_owned()],
        solution: vec![write, say],
        agent_timeout_s: Some(120.0),
        ..Task::default()
    }
}

pub(crate) fn load(path: &Path) -> anyhow::Result<LoadedTask> {
    let mut task = read(path)?;
    if task.id.is_empty() {
        task.id = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut uploads = BTreeMap::new();
    for (target, source) in &task.upload {
        let added = add_upload(&mut uploads, target, &directory.join(source));
        added.map_err(|why| UsageError(format!("task {}: upload {why}", path.display())))?;
    }
    Ok(LoadedTask { task, uploads })
}

/// The solution of a task file, which must have one.
pub(crate) fn read_solution(path: &Path) -> anyhow::Result<Vec<Step>> {
    let task = read(path)?;
    if task.solution.is_empty() {
        return Err(UsageError(format!("{} has no `solution` to play", path.display())).into());
    }
    Ok(task.solution)
}

fn read(path: &Path) -> anyhow::Result<Task> {
    if path.is_dir() {
        let text = format!(
            "{} is a directory: give a TOML or JSON task file",
            path.display()
        );
        return Err(UsageError(text).into());
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| UsageError(format!("read task {}: {error}", path.display())))?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let task = if is_json {
        Task::from_json(&text)
    } else {
        Task::from_toml(&text)
    };
    let chain = |error| format!("{:#}", anyhow::Error::from(error));
    task.map_err(|error| UsageError(format!("task {}: {}", path.display(), chain(error))).into())
}
