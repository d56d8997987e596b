//! The tasks of a server: the files of one folder. Each sub-folder is a split; files directly in the folder are the
//! split `train`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use rollcage_engine::intake::Upload;
use rollcage_model::task::Task;
use rollcage_model::task::mcp::McpServer;

use crate::UsageError;
use crate::task_file::{self, LoadedTask};

/// The split of tasks directly in the folder.
const DEFAULT_SPLIT: &str = "train";
/// For one upload of a task that is sent to a client, where it becomes text.
const UPLOAD_BYTES_MAX: usize = 1 << 20;

/// One task of the list; the rest of it is read when it runs.
#[derive(Clone, Debug)]
pub(crate) struct TaskEntry {
    pub(crate) id: String,
    pub(crate) instruction: String,
    /// Whether the scripted endpoint can solve it.
    pub(crate) has_solution: bool,
    path: PathBuf,
}

/// All tasks, by split and in the order of their file names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    splits: BTreeMap<String, Vec<TaskEntry>>,
}

impl Tasks {
    /// Reads every task once, so that an invalid one is found when the server starts.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut splits = BTreeMap::new();
        let top = read_split(folder)?;
        if !top.is_empty() {
            splits.insert(DEFAULT_SPLIT.to_owned(), top);
        }
        for path in entries(folder)? {
            let name = name_of(&path);
            if !path.is_dir() || is_task(&path) || name.starts_with('.') {
                continue;
            }
            let listed = read_split(&path)?;
            if !listed.is_empty() && splits.insert(name.clone(), listed).is_some() {
                let text = format!(
                    "tasks {}: both the folder itself and its sub-folder {name} are the split {name}",
                    folder.display()
                );
                return Err(UsageError(text).into());
            }
        }
        if splits.is_empty() {
            let text = format!(
                "tasks {}: no .toml or .json task files in it or in its sub-folders",
                folder.display()
            );
            return Err(UsageError(text).into());
        }
        Ok(Tasks { splits })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.splits.is_empty()
    }

    pub(crate) fn split(&self, name: &str) -> Option<&[TaskEntry]> {
        self.splits.get(name).map(Vec::as_slice)
    }

    pub(crate) fn splits(&self) -> impl Iterator<Item = (&str, usize)> {
        self.splits
            .iter()
            .map(|(name, tasks)| (name.as_str(), tasks.len()))
    }

    /// The split that is meant when none is named: the only one, or `train`.
    pub(crate) fn default_split(&self) -> &str {
        match self.splits.keys().next() {
            Some(only) if self.splits.len() == 1 => only,
            _ => DEFAULT_SPLIT,
        }
    }

    /// The tasks of one split, or of all of them.
    pub(crate) fn list<'a, 'b>(
        &'a self,
        split: Option<&'b str>,
    ) -> impl Iterator<Item = (&'a str, usize, &'a TaskEntry)> + use<'a, 'b> {
        let wanted = self
            .splits
            .iter()
            .filter(move |(name, _)| split.is_none_or(|split| split == *name));
        wanted.flat_map(|(name, tasks)| {
            let numbered = tasks.iter().enumerate();
            numbered.map(move |(index, task)| (name.as_str(), index, task))
        })
    }

    pub(crate) fn by_id(&self, split: Option<&str>, id: &str) -> Result<&TaskEntry, String> {
        let found = self.list(split).find(|(_, _, task)| task.id == id);
        found.map(|(_, _, task)| task).ok_or_else(|| {
            format!(
                "no task `{id}`: list_tasks shows the {} there are",
                self.count()
            )
        })
    }

    pub(crate) fn by_index(&self, split: Option<&str>, index: usize) -> Result<&TaskEntry, String> {
        let split = split.unwrap_or_else(|| self.default_split());
        let tasks = self.splits.get(split).ok_or_else(|| {
            let names: Vec<_> = self.splits.keys().map(String::as_str).collect();
            format!("no split `{split}`: there is {}", names.join(", "))
        })?;
        tasks
            .get(index)
            .ok_or_else(|| format!("split `{split}` has {} tasks, none {index}", tasks.len()))
    }

    pub(crate) fn count(&self) -> usize {
        self.splits.values().map(Vec::len).sum()
    }
}

impl TaskEntry {
    /// Reads the task and its uploads.
    pub(crate) fn load(&self) -> anyhow::Result<LoadedTask> {
        task_file::load(&self.path)
    }

    /// The complete task for a client, which has none of our files: uploads become inline files.
    pub(crate) fn portable(&self) -> anyhow::Result<Value> {
        let loaded = self.load()?;
        let mut task = loaded.task;
        for (target, upload) in loaded.uploads {
            let text = match upload {
                Upload::File { content, .. } => String::from_utf8(content).ok(),
                Upload::Link { .. } | Upload::Directory => None,
            };
            let Some(text) = text.filter(|text| text.len() <= UPLOAD_BYTES_MAX) else {
                anyhow::bail!(
                    "task {}: the upload {target} is no text below 1 MiB, so it cannot be sent to clients; \
                     run the task by its id, or make the file in `setup`",
                    self.id
                );
            };
            task.files.insert(target, text);
        }
        task.upload.clear();
        task.mcp.values_mut().for_each(McpServer::mask);
        Ok(serde_json::to_value(task)?)
    }

    pub(crate) fn row(&self, split: &str, index: usize) -> TaskRow {
        TaskRow {
            id: self.id.clone(),
            split: split.to_owned(),
            index,
            instruction: self.instruction.clone(),
            has_solution: self.has_solution,
        }
    }
}

/// A task in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TaskRow {
    /// Names it.
    id: String,
    /// The split that it is in.
    split: String,
    /// Its place there.
    index: usize,
    /// What the agent is told.
    instruction: String,
    /// Whether the scripted endpoint can play it.
    has_solution: bool,
}

fn read_split(folder: &Path) -> anyhow::Result<Vec<TaskEntry>> {
    let mut listed = Vec::new();
    for path in entries(folder)? {
        if is_task(&path) {
            let Task {
                id,
                instruction,
                solution,
                ..
            } = task_file::load(&path)?.task;
            listed.push(TaskEntry {
                id,
                instruction,
                has_solution: !solution.is_empty(),
                path,
            });
        }
    }
    Ok(listed)
}

/// A task file, or a folder that is one task.
fn is_task(path: &Path) -> bool {
    if path.is_dir() {
        return path.join("task.toml").is_file();
    }
    path.extension()
        .is_some_and(|extension| extension == "toml" || extension == "json")
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            paths.push(entry?.path());
        }
        paths.sort();
        Ok(paths)
    };
    read().map_err(|error| UsageError(format!("tasks {}: {error}", folder.display())).into())
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn folders_are_splits_and_files_are_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "b.toml",
            "instruction = 'b'\n[[solution]]\nrun = 'touch b'\n",
        );
        write("a.json", r#"{"id": "first", "instruction": "a"}"#);
        write("test/c.toml", "instruction = 'c'");
        write("notes.md", "no task");
        let tasks = Tasks::read(folder.path()).unwrap();
        let splits: Vec<_> = tasks.splits().collect();
        assert_eq!(splits, [("test", 1), ("train", 2)]);
        let ids: Vec<_> = tasks
            .list(Some("train"))
            .map(|(_, _, task)| task.id.as_str())
            .collect();
        assert_eq!(ids, ["first", "b"]);
        assert!(tasks.by_index(None, 1).unwrap().has_solution);
        assert_eq!(tasks.by_index(Some("test"), 0).unwrap().id, "c");
        assert_eq!(
            tasks
                .by_id(None, "c")
                .unwrap()
                .load()
                .unwrap()
                .task
                .instruction,
            "c"
        );
        assert_eq!(
            tasks.by_index(Some("test"), 3).unwrap_err(),
            "split `test` has 1 tasks, none 3"
        );
        assert!(
            tasks
                .by_id(None, "x")
                .unwrap_err()
                .contains("the 3 there are")
        );
        write("test/wrong.toml", "instrution = 'c'");
        let error = Tasks::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("wrong.toml"), "{error}");
    }

    #[test]
    fn a_client_gets_a_task_with_its_uploads() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tasks::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no .toml or .json task files"));
        let write = |path: &str, text: &[u8]| std::fs::write(folder.path().join(path), text);
        write(
            "a.toml",
            b"instruction = 'a'\nupload = {'in.txt' = 'data.txt'}",
        )
        .unwrap();
        write("data.txt", b"text").unwrap();
        let tasks = Tasks::read(folder.path()).unwrap();
        let task = tasks.by_index(None, 0).unwrap();
        let value = task.portable().unwrap();
        assert_eq!(value["files"], json!({"in.txt": "text"}));
        assert_eq!(value["upload"], json!({}));
        write("data.txt", b"\xff").unwrap();
        assert!(task.portable().is_err());
    }
}
