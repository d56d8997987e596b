//! The names of control groups: which hierarchies limit what, and where in them a sandbox's groups are. The engine
//! chooses the names, limits and removes the groups; the zygote creates them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What enforces one kind of limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Controller {
    V2,
    /// Our directory in the controller's hierarchy.
    V1(PathBuf),
    None,
}

/// The engine's own groups, parents of all its sandboxes' groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroups {
    pub(crate) unified: Option<PathBuf>,
    pub(crate) memory: Controller,
    pub(crate) pids: Controller,
    pub(crate) cpu: Controller,
    pub(crate) accounting: Controller,
}

impl Controller {
    pub(crate) fn describe(&self, otherwise: &str) -> String {
        match self {
            Controller::V2 => String::from("cgroup-v2"),
            Controller::V1(_) => String::from("cgroup-v1"),
            Controller::None => String::from(otherwise),
        }
    }
}

impl Cgroups {
    /// The group called `name`, whether or not it exists.
    pub(crate) fn group(&self, name: &str) -> Group {
        Group {
            cgroups: self.clone(),
            name: name.to_owned(),
        }
    }
}

/// One sandbox's groups.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) cgroups: Cgroups,
    pub(crate) name: String,
}

impl Group {
    pub(crate) fn directory(&self, controller: &Controller) -> Option<PathBuf> {
        match controller {
            Controller::V2 => self.unified(),
            Controller::V1(parent) => Some(parent.join(&self.name)),
            Controller::None => None,
        }
    }

    fn unified(&self) -> Option<PathBuf> {
        self.cgroups
            .unified
            .as_ref()
            .map(|parent| parent.join(&self.name))
    }

    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let Cgroups {
            memory,
            pids,
            cpu,
            accounting,
            ..
        } = &self.cgroups;
        let mut directories: Vec<PathBuf> = [memory, pids, cpu, accounting]
            .into_iter()
            .filter_map(|controller| self.directory(controller))
            .collect();
        directories.sort();
        directories.dedup();
        directories
    }
}
