//! The routes, and the method of each. They are matched by hand, in the fallback of the server's router, because
//! clients see how the original answers wrong paths, methods and slashes. `/v1`, beside it, is a plain axum router.

use axum::http::Method;

use super::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    Health,
    Metadata,
    Schema,
    OpenApi,
    State,
    Reset,
    Step,
    /// Of the page.
    Web(WebCall),
    Mcp,
    Ws,
    ListEnvironments,
    /// The environment's name, and the operation of the Task API.
    Tasks(&'a str, TaskCall),
}

/// What the original's page asks: of one environment, which the page keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebCall {
    Metadata,
    State,
    Reset,
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskCall {
    Splits,
    Tasks,
    Count,
    Task,
    Range,
}

impl<'a> Route<'a> {
    pub(crate) fn of(path: &'a str, mode: Mode) -> Option<Self> {
        let has_control = mode == Mode::Simulation;
        Some(match path {
            "/health" => Route::Health,
            "/metadata" => Route::Metadata,
            "/schema" => Route::Schema,
            "/openapi.json" => Route::OpenApi,
            "/state" if has_control => Route::State,
            "/reset" if has_control => Route::Reset,
            "/step" if has_control => Route::Step,
            "/web/metadata" => Route::Web(WebCall::Metadata),
            "/web/state" => Route::Web(WebCall::State),
            "/web/reset" => Route::Web(WebCall::Reset),
            "/web/step" => Route::Web(WebCall::Step),
            "/mcp" => Route::Mcp,
            "/ws" => Route::Ws,
            "/list_environments" => Route::ListEnvironments,
            _ => {
                let (env, call) = path.strip_prefix('/')?.split_once('/')?;
                let call = match call {
                    "splits" => TaskCall::Splits,
                    "tasks" => TaskCall::Tasks,
                    "num_tasks" => TaskCall::Count,
                    "task" => TaskCall::Task,
                    "task_range" => TaskCall::Range,
                    _ => return None,
                };
                Route::Tasks(env, call)
            }
        })
    }

    /// Whether the route is there for people only.
    pub(crate) fn is_of_page(self) -> bool {
        matches!(self, Route::Web(_))
    }

    pub(crate) fn method(self) -> Method {
        match self {
            Route::Health
            | Route::Metadata
            | Route::Schema
            | Route::OpenApi
            | Route::State
            | Route::Web(WebCall::Metadata | WebCall::State)
            | Route::Ws
            | Route::ListEnvironments
            | Route::Tasks(_, TaskCall::Splits) => Method::GET,
            Route::Reset
            | Route::Step
            | Route::Web(WebCall::Reset | WebCall::Step)
            | Route::Mcp
            | Route::Tasks(
                _,
                TaskCall::Tasks | TaskCall::Count | TaskCall::Task | TaskCall::Range,
            ) => Method::POST,
        }
    }
}
