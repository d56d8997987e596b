//! A service of a task: a program that runs beside the agent or the verify commands.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{TaskError, check_timeout};

/// How long a service may take to be ready, unless it says otherwise.
pub const READY_TIMEOUT_S: f64 = 30.0;
/// More than any task has; each one's output is held in memory while it runs.
const SERVICES_MAX: usize = 16;

/// A program that runs beside the agent or the verify commands. A plain text is `run` alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Service {
    pub run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    pub ready_timeout_s: f64,
}

impl Service {
    /// A service that is ready as soon as it runs.
    pub fn new(run: impl Into<String>) -> Self {
        Service {
            run: run.into(),
            ready: None,
            ready_timeout_s: READY_TIMEOUT_S,
        }
    }
}

/// Checks a list of services, called `key` in the task.
pub(super) fn check(key: &'static str, services: &[Service]) -> Result<(), TaskError> {
    if services.len() > SERVICES_MAX {
        return Err(TaskError::Services {
            key,
            wanted: "at most 16",
        });
    }
    for service in services {
        let commands = [Some(&service.run), service.ready.as_ref()];
        let is_empty = |command: &&String| command.trim().is_empty() || command.contains('\0');
        if commands.into_iter().flatten().any(|it| is_empty(&it)) {
            return Err(TaskError::Services {
                key,
                wanted: "shell commands, none of them empty",
            });
        }
        check_timeout("ready_timeout_s", service.ready_timeout_s)?;
    }
    Ok(())
}

/// A service as a table.
#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(rename = "ServiceTable")]
#[serde(deny_unknown_fields)]
struct Table {
    /// The command, which stays in the foreground.
    run: String,
    /// A command that exits with 0 once the service can be used; without it a service is ready when it runs.
    ready: Option<String>,
    /// How long that may take.
    #[serde(default = "ready_timeout_s")]
    ready_timeout_s: f64,
}

fn ready_timeout_s() -> f64 {
    READY_TIMEOUT_S
}

impl<'de> Deserialize<'de> for Service {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTable)
    }
}

struct TextOrTable;

impl<'de> Visitor<'de> for TextOrTable {
    type Value = Service;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a shell command, or a table with `run`, `ready` and `ready_timeout_s`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Service, E> {
        Ok(Service::new(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Service, A::Error> {
        let table = Table::deserialize(de::value::MapAccessDeserializer::new(members))?;
        Ok(Service {
            run: table.run,
            ready: table.ready,
            ready_timeout_s: table.ready_timeout_s,
        })
    }
}

impl schemars::JsonSchema for Service {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Service".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = generator.subschema_for::<Table>();
        schemars::json_schema!({
            "description": "A program that runs beside the agent or the verify commands: a shell command, or a table.",
            "anyOf": [{"type": "string"}, table]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;

    #[test]
    fn a_service_is_a_command_or_a_table() {
        let text =
            "instruction = 'go'\nservices = ['a', {run = 'b', ready = 'c', ready_timeout_s = 5}]";
        let task = Task::from_toml(text).unwrap();
        let second = Service {
            run: "b".to_owned(),
            ready: Some("c".to_owned()),
            ready_timeout_s: 5.0,
        };
        assert_eq!(task.services, [Service::new("a"), second]);
        let again = Task::from_json(&serde_json::to_string(&task).unwrap()).unwrap();
        assert_eq!(again, task);
    }

    #[test]
    fn a_wrong_service_is_named() {
        let check = |services: &str, expect: &str| {
            let text = format!("instruction = 'go'\nverify_services = {services}");
            let error = crate::text::chain(&Task::from_toml(&text).unwrap_err());
            assert!(error.contains(expect), "{error}");
        };
        check("[7]", "a shell command, or a table");
        check("['']", "`verify_services` must be shell commands");
        check("[{run = 'a', port = 1}]", "unknown field `port`");
        check("[{ready = 'a'}]", "missing field `run`");
        check(
            "[{run = 'a', ready_timeout_s = 0}]",
            "`ready_timeout_s` must be",
        );
        let many = vec!["'a'"; 17].join(",");
        check(&format!("[{many}]"), "must be at most 16");
    }
}
