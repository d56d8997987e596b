//! The Task API over a folder of task files.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::problem::Fields;
use super::route::TaskCall;
use super::{OpenEnvServer, control};
use crate::server::reply;
use crate::server::tasks::{TaskEntry, Tasks};

/// The name that OpenEnv's `HarborEnv` has in its paths. Under it tasks have the members that this client needs, too.
const HARBOR: &str = "harbor_env";

/// The splits as OpenEnv describes them.
fn names(tasks: &Tasks, is_harbor: bool) -> Vec<Value> {
    let entry = |(name, count): (&str, usize)| {
        let kind = match name {
            "train" | "validation" | "test" => name,
            _ => "validation",
        };
        match is_harbor {
            true => json!({"name": name, "type": kind, "num_tasks": count}),
            false => json!({"name": name, "type": kind}),
        }
    };
    tasks.splits().map(entry).collect()
}

pub(crate) async fn answer(
    server: &OpenEnvServer,
    env: &str,
    call: TaskCall,
    request: Request,
) -> Response {
    let is_harbor = env.eq_ignore_ascii_case(HARBOR);
    if !is_harbor && !env.eq_ignore_ascii_case(&server.name) {
        return reply::detail(
            StatusCode::NOT_FOUND,
            &format!("unknown environment '{env}'"),
        );
    }
    if call == TaskCall::Splits {
        return if server.tasks.is_empty() {
            unsupported(call)
        } else {
            reply::json(StatusCode::OK, &names(&server.tasks, is_harbor))
        };
    }
    let members = match control::object(server, request).await {
        Ok(Some(members)) => members,
        Ok(None) => return reply::unprocessable(&[control::no_body()]),
        Err(refused) => return refused,
    };
    let Asked {
        split,
        index,
        start,
        stop,
    } = match asked(call, &members) {
        Ok(asked) => asked,
        Err(problems) => return reply::unprocessable(&problems),
    };
    if server.tasks.is_empty() {
        return unsupported(call);
    }
    let split = match split.as_str() {
        "" => server.tasks.default_split(),
        split => split,
    };
    let Some(tasks) = server.tasks.split(split) else {
        return reply::detail(StatusCode::BAD_REQUEST, &format!("unknown split '{split}'"));
    };
    let tasks: Vec<(usize, &TaskEntry)> = tasks.iter().enumerate().collect();
    let wanted = match call {
        TaskCall::Splits | TaskCall::Tasks => &tasks[..],
        TaskCall::Count => {
            return reply::json(StatusCode::OK, &json!({"num_tasks": tasks.len()}));
        }
        TaskCall::Task => match usize::try_from(index).ok().and_then(|at| tasks.get(at)) {
            Some(task) => std::slice::from_ref(task),
            None => return reply::detail(StatusCode::BAD_REQUEST, "Invalid task index"),
        },
        TaskCall::Range => slice(&tasks, start, stop),
    };
    let entries = wanted.iter().map(|(_, task)| (*task).clone()).collect();
    let mut values = match read_all(entries).await {
        Ok(values) => values,
        Err(problem) => return reply::detail(StatusCode::BAD_REQUEST, &problem),
    };
    if is_harbor {
        for (value, (index, _)) in values.iter_mut().zip(wanted) {
            refer(value, *index, split);
        }
    }
    let answer = match call {
        TaskCall::Task => json!({"task": values.first()}),
        TaskCall::Range => json!({"tasks": values}),
        TaskCall::Splits | TaskCall::Tasks | TaskCall::Count => {
            json!({"tasks": values, "env_name": server.name})
        }
    };
    reply::json(StatusCode::OK, &answer)
}

/// The body of a request.
#[derive(Default)]
struct Asked {
    split: String,
    index: i64,
    start: Option<i64>,
    stop: Option<i64>,
}

fn asked(call: TaskCall, members: &Map<String, Value>) -> Result<Asked, Vec<Value>> {
    let location = ["body".into()];
    let mut fields = Fields::new(members, &location);
    let mut asked = Asked {
        split: fields.string("split").unwrap_or_default().to_owned(),
        ..Asked::default()
    };
    match call {
        TaskCall::Splits | TaskCall::Tasks | TaskCall::Count => fields.only(&["split"]),
        TaskCall::Task => {
            asked.index = fields.integer("index").unwrap_or_default();
            fields.only(&["split", "index"]);
        }
        TaskCall::Range => {
            asked.start = fields.optional_integer("start");
            asked.stop = fields.optional_integer("stop");
            fields.only(&["split", "start", "stop"]);
        }
    }
    fields.finish()?;
    Ok(asked)
}

/// Adds what `HarborTaskRef` has.
fn refer(task: &mut Value, index: usize, split: &str) {
    let id = task["id"].clone();
    task["index"] = json!(index);
    task["task_id"] = id.clone();
    task["task_name"] = id;
    task["dataset"] = json!(split);
}

/// Reads tasks from disk for every request, so that edits take effect.
async fn read_all(tasks: Vec<TaskEntry>) -> Result<Vec<Value>, String> {
    let read = tokio::task::spawn_blocking(move || {
        let values: anyhow::Result<Vec<Value>> = tasks.iter().map(TaskEntry::portable).collect();
        values.map_err(|error| format!("{error:#}"))
    });
    read.await.unwrap_or_else(|error| Err(error.to_string()))
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

/// Slices like Python: negative bounds count from the end, and bounds out of range are not errors.
fn slice<T>(tasks: &[T], start: Option<i64>, stop: Option<i64>) -> &[T] {
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
    fn slices_work_like_pythons() {
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
}
