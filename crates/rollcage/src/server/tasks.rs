//! The tasks that a server offers: files of one folder. A sub-folder is a split of its name; files beside it are the
//! split `train`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use rollcage_model::task::Task;

use crate::cli::task::{self, Loaded};

/// The split of tasks that lie directly in the folder.
const TOP: &str = "train";

/// One task as it is listed; its files are read when it is run.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) instruction: String,
    /// Whether the scripted endpoint can play it.
    pub(crate) has_solution: bool,
    path: PathBuf,
}

/// All tasks, by split and in the order of their file names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    splits: BTreeMap<String, Vec<Listed>>,
}

impl Tasks {
    /// Reads every task once, so that a wrong one is found when the server starts.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut splits = BTreeMap::new();
        let top = read_split(folder)?;
        if !top.is_empty() {
            splits.insert(TOP.to_owned(), top);
        }
        for path in entries(folder)? {
            if path.is_dir() && !is_task(&path) {
                let listed = read_split(&path)?;
                if !listed.is_empty() {
                    let split: &mut Vec<Listed> = splits.entry(name_of(&path)).or_default();
                    split.extend(listed);
                }
            }
        }
        Ok(Tasks { splits })
    }

    pub(crate) fn splits(&self) -> impl Iterator<Item = (&str, usize)> {
        self.splits
            .iter()
            .map(|(name, tasks)| (name.as_str(), tasks.len()))
    }

    /// The tasks of one split, or of all of them.
    pub(crate) fn list<'a, 'b>(
        &'a self,
        split: Option<&'b str>,
    ) -> impl Iterator<Item = (&'a str, usize, &'a Listed)> + use<'a, 'b> {
        let wanted = self
            .splits
            .iter()
            .filter(move |(name, _)| split.is_none_or(|split| split == *name));
        wanted.flat_map(|(name, tasks)| {
            let numbered = tasks.iter().enumerate();
            numbered.map(move |(index, task)| (name.as_str(), index, task))
        })
    }

    pub(crate) fn by_id(&self, split: Option<&str>, id: &str) -> Result<&Listed, String> {
        let found = self.list(split).find(|(_, _, task)| task.id == id);
        found.map(|(_, _, task)| task).ok_or_else(|| {
            format!(
                "no task `{id}`: list_tasks shows the {} there are",
                self.count()
            )
        })
    }

    pub(crate) fn by_index(&self, split: Option<&str>, index: usize) -> Result<&Listed, String> {
        let only = (self.splits.len() == 1)
            .then(|| self.splits.keys().next())
            .flatten();
        let split = split
            .map(str::to_owned)
            .or_else(|| only.cloned())
            .unwrap_or_else(|| TOP.to_owned());
        let tasks = self.splits.get(&split).ok_or_else(|| {
            let names: Vec<_> = self.splits.keys().map(String::as_str).collect();
            format!("no split `{split}`: there is {}", names.join(", "))
        })?;
        tasks
            .get(index)
            .ok_or_else(|| format!("split `{split}` has {} tasks, none {index}", tasks.len()))
    }

    fn count(&self) -> usize {
        self.splits.values().map(Vec::len).sum()
    }
}

impl Listed {
    /// Reads the task with everything it uploads.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        task::load(&self.path)
    }

    pub(crate) fn to_value(&self, split: &str, index: usize) -> Value {
        json!({
            "id": self.id,
            "split": split,
            "index": index,
            "instruction": self.instruction,
            "has_solution": self.has_solution,
        })
    }
}

fn read_split(folder: &Path) -> anyhow::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for path in entries(folder)? {
        if is_task(&path) {
            let Task {
                id,
                instruction,
                solution,
                ..
            } = task::load(&path)?.task;
            listed.push(Listed {
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
    read().with_context(|| format!("read the tasks in {}", folder.display()))
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        assert!(Tasks::read(folder.path()).is_err());
    }
}
