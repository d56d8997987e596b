//! The Task API over a folder of task files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::problem::Fields;
use super::route::TaskCall;
use super::{Wire, control};
use crate::WrongUse;
use crate::cli::task;
use crate::server::reply;

/// The split of task files that lie in the folder itself.
const DEFAULT_SPLIT: &str = "train";
/// A client gets a task as text, and so what it uploads.
const UPLOAD_BYTES_MAX: usize = 1 << 20;

/// Tasks by split, in the order of their file names.
#[derive(Debug)]
pub(crate) struct TaskFolder {
    splits: BTreeMap<String, Vec<Value>>,
}

impl TaskFolder {
    /// Reads every task file of a folder: its sub-folders are splits, files in itself are the split `train`.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut splits = BTreeMap::new();
        let (files, folders) = entries(folder)?;
        if !files.is_empty() {
            splits.insert(DEFAULT_SPLIT.to_owned(), read_all(&files)?);
        }
        for folder in folders {
            let (files, _) = entries(&folder)?;
            let name = folder.file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            if files.is_empty() || name.starts_with('.') {
                continue;
            }
            if splits.insert(name.clone(), read_all(&files)?).is_some() {
                let text = format!(
                    "tasks {}: both the folder itself and its sub-folder {name} are the split {name}",
                    folder.display()
                );
                return Err(WrongUse(text).into());
            }
        }
        if splits.is_empty() {
            let text = format!(
                "tasks {}: no .toml or .json task files in it or in its sub-folders",
                folder.display()
            );
            return Err(WrongUse(text).into());
        }
        Ok(TaskFolder { splits })
    }

    fn names(&self) -> Vec<Value> {
        let entry = |name: &String| {
            let kind = match name.as_str() {
                "train" | "validation" | "test" => name.as_str(),
                _ => "validation",
            };
            json!({"name": name, "type": kind})
        };
        self.splits.keys().map(entry).collect()
    }
}

/// Task files and sub-folders, each sorted by name.
fn entries(folder: &Path) -> anyhow::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let listing = std::fs::read_dir(folder)
        .map_err(|error| WrongUse(format!("tasks {}: {error}", folder.display())))?;
    let mut files = Vec::new();
    let mut folders = Vec::new();
    for entry in listing {
        let path = entry
            .with_context(|| format!("list {}", folder.display()))?
            .path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            folders.push(path);
        } else if matches!(extension, Some("toml" | "json")) {
            files.push(path);
        }
    }
    files.sort();
    folders.sort();
    Ok((files, folders))
}

fn read_all(files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    files.iter().map(|path| read_one(path)).collect()
}

/// A task that stands alone: what it uploads becomes a part of it.
fn read_one(path: &Path) -> anyhow::Result<Value> {
    let loaded = task::load(path)?;
    let mut task = loaded.task;
    for (target, content) in loaded.uploads {
        let text = String::from_utf8(content).ok();
        let Some(text) = text.filter(|text| text.len() <= UPLOAD_BYTES_MAX) else {
            let text = format!(
                "task {}: the upload {target} is no text below 1 MiB, so it cannot be sent to clients; \
                 make it in `setup` instead",
                path.display()
            );
            return Err(WrongUse(text).into());
        };
        task.files.insert(target, text);
    }
    task.upload.clear();
    Ok(serde_json::to_value(task)?)
}

pub(crate) async fn answer(wire: &Wire, env: &str, call: TaskCall, request: Request) -> Response {
    if !env.eq_ignore_ascii_case(&wire.name) {
        return reply::detail(
            StatusCode::NOT_FOUND,
            &format!("unknown environment '{env}'"),
        );
    }
    if call == TaskCall::Splits {
        return match &wire.tasks {
            Some(tasks) => reply::json(StatusCode::OK, &tasks.names()),
            None => unsupported(call),
        };
    }
    let members = match control::object(wire, request).await {
        Ok(Some(members)) => members,
        Ok(None) => return reply::unprocessable(&[control::no_body()]),
        Err(refused) => return refused,
    };
    let place = ["body".into()];
    let mut fields = Fields::new(&members, &place);
    let split = fields.string("split").unwrap_or_default();
    let mut index = 0;
    let (mut start, mut stop) = (None, None);
    match call {
        TaskCall::Splits | TaskCall::Tasks | TaskCall::Count => fields.only(&["split"]),
        TaskCall::Task => {
            index = fields.integer("index").unwrap_or_default();
            fields.only(&["split", "index"]);
        }
        TaskCall::Range => {
            start = fields.optional_integer("start");
            stop = fields.optional_integer("stop");
            fields.only(&["split", "start", "stop"]);
        }
    }
    if let Err(problems) = fields.finish() {
        return reply::unprocessable(&problems);
    }
    let Some(folder) = &wire.tasks else {
        return unsupported(call);
    };
    let Some(tasks) = folder.splits.get(split) else {
        return reply::detail(StatusCode::BAD_REQUEST, &format!("unknown split '{split}'"));
    };
    let answer = match call {
        TaskCall::Splits | TaskCall::Tasks => json!({"tasks": tasks, "env_name": wire.name}),
        TaskCall::Count => json!({"num_tasks": tasks.len()}),
        TaskCall::Task => match usize::try_from(index).ok().and_then(|at| tasks.get(at)) {
            Some(task) => json!({"task": task}),
            None => return reply::detail(StatusCode::BAD_REQUEST, "Invalid task index"),
        },
        TaskCall::Range => json!({"tasks": slice(tasks, start, stop)}),
    };
    reply::json(StatusCode::OK, &answer)
}

fn unsupported(call: TaskCall) -> Response {
    let method = match call {
        TaskCall::Splits => "list_splits",
        TaskCall::Tasks => "list_tasks",
        TaskCall::Count => "num_tasks",
        TaskCall::Task => "get_task",
        TaskCall::Range => "get_task_range",
    };
    let text = format!("{method} is not supported for this environment");
    reply::detail(StatusCode::NOT_IMPLEMENTED, &text)
}

/// As Python slices: negative bounds count from the end, and no bound is an error.
fn slice(tasks: &[Value], start: Option<i64>, stop: Option<i64>) -> &[Value] {
    let bound = |bound: i64| match usize::try_from(bound) {
        Ok(bound) => bound.min(tasks.len()),
        Err(_) => {
            let back = usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX);
            tasks.len().saturating_sub(back)
        }
    };
    let (start, stop) = (start.map_or(0, bound), stop.map_or(tasks.len(), bound));
    tasks.get(start..stop).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_pythons() {
        let tasks: Vec<Value> = (0..4).map(Value::from).collect();
        let check = |start, stop, expected: &[i64]| {
            let expected: Vec<Value> = expected.iter().copied().map(Value::from).collect();
            assert_eq!(slice(&tasks, start, stop), expected);
        };
        check(None, None, &[0, 1, 2, 3]);
        check(Some(1), Some(3), &[1, 2]);
        check(Some(-2), None, &[2, 3]);
        check(Some(-9), Some(-3), &[0]);
        check(Some(3), Some(1), &[]);
        check(Some(9), Some(99), &[]);
    }

    #[test]
    fn a_folder_is_read_with_its_splits() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "b.toml",
            "instruction = 'two'\nupload = {'in.txt' = 'data.txt'}",
        );
        write("a.json", r#"{"instruction": "one"}"#);
        write("data.txt", "text");
        write("hard/c.toml", "id = 'named'\ninstruction = 'three'");
        write("notes/readme.md", "not a task");
        let tasks = TaskFolder::read(folder.path()).unwrap();
        assert_eq!(
            Value::from(tasks.names()),
            json!([{"name": "hard", "type": "validation"}, {"name": "train", "type": "train"}])
        );
        assert_eq!(tasks.splits["train"][0]["id"], "a");
        assert_eq!(tasks.splits["train"][1]["files"], json!({"in.txt": "text"}));
        assert_eq!(tasks.splits["train"][1]["upload"], json!({}));
        assert_eq!(tasks.splits["hard"][0]["id"], "named");
    }

    #[test]
    fn a_broken_task_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = TaskFolder::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no .toml or .json task files"));
        std::fs::write(folder.path().join("x.toml"), "instruction = ''").unwrap();
        let error = TaskFolder::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("x.toml"), "{error}");
    }
}
