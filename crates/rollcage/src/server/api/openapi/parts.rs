//! What path items are made of. An area of the API (a file beside this one) adds its operations to [`Paths`]:
//!
//! ```ignore
//! paths.add("get", "/v1/rollouts/{id}/turns", Operation::of_rollout("listTurns", "Its model calls")
//!     .query("start", "The first one's number.", whole_number(0))
//!     .answers::<TurnPage>(200, "A page.")
//!     .example(200, json!({"turns": [], "start": 0, "total": 0})));
//! ```

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::server::api::schemas::schema_of;
use crate::server::api::types::ErrorAnswer;

const JSON: &str = "application/json";
const UNREADABLE: &str = "Its record cannot be read: it is damaged, or of another version.";
const TOO_LARGE: &str = "More is stored of its model calls than is shown: 512 MiB.";
const BUSY: &str = "Other records are being read; try again later.";
const NO_ROLLOUT: &str = "There is no such rollout, or it is not yours.";

/// Path items by path.
#[derive(Default)]
pub(super) struct Paths(Map<String, Value>);

impl Paths {
    /// Adds the operation of a method of a path.
    pub(super) fn add(&mut self, method: &str, path: &str, operation: Operation) {
        let item = self.0.entry(path).or_insert_with(|| json!({}));
        item[method] = operation.0;
    }

    pub(super) fn into_items(self) -> Map<String, Value> {
        self.0
    }
}

/// What one method of one path takes and answers.
pub(super) struct Operation(Value);

impl Operation {
    /// `id` is unique in the document: generated clients name their functions after it.
    pub(super) fn new(tag: &str, id: &str, summary: &str) -> Self {
        Operation(json!({
            "operationId": id, "summary": summary, "tags": [tag], "parameters": [], "responses": {},
        }))
    }

    /// An operation on one rollout, which may not exist.
    pub(super) fn of_rollout(id: &str, summary: &str) -> Self {
        let uuid = json!({"type": "string", "format": "uuid"});
        Operation::new("rollouts", id, summary)
            .path("id", "The rollout.", uuid)
            .refuses(404, NO_ROLLOUT)
    }

    /// An operation on the record of one rollout, which may be damaged.
    pub(super) fn of_record(id: &str, summary: &str) -> Self {
        Operation::of_rollout(id, summary).refuses(409, UNREADABLE)
    }

    /// An operation on the model calls of one rollout, which may be too many.
    pub(super) fn of_calls(id: &str, summary: &str) -> Self {
        Operation::of_record(id, summary)
            .refuses(422, TOO_LARGE)
            .refuses(503, BUSY)
    }

    /// What the summary has no room for, in Markdown.
    pub(super) fn about(mut self, text: &str) -> Self {
        self.0["description"] = json!(text);
        self
    }

    /// It needs no token.
    pub(super) fn without_token(mut self) -> Self {
        self.0["security"] = json!([]);
        self
    }

    /// A parameter in the path.
    pub(super) fn path(mut self, name: &str, about: &str, schema: Value) -> Self {
        self.push(json!({
            "name": name, "in": "path", "required": true, "description": about, "schema": schema,
        }));
        self
    }

    /// A parameter in the query that may be left out.
    pub(super) fn query(mut self, name: &str, about: &str, schema: Value) -> Self {
        self.push(json!({
            "name": name, "in": "query", "required": false, "description": about, "schema": schema,
        }));
        self
    }

    /// A header that may be left out.
    pub(super) fn header(mut self, name: &str, about: &str, schema: Value) -> Self {
        self.push(json!({
            "name": name, "in": "header", "required": false, "description": about, "schema": schema,
        }));
        self
    }

    fn push(&mut self, parameter: Value) {
        if let Some(parameters) = self.0["parameters"].as_array_mut() {
            parameters.push(parameter);
        }
    }

    /// A body of JSON, with a request that works.
    pub(super) fn takes(self, schema: Value, example: Value) -> Self {
        self.takes_as(JSON, json!({"schema": schema, "example": example}))
    }

    /// A body of any media type; called again for each that is taken.
    pub(super) fn takes_as(mut self, media_type: &str, media: Value) -> Self {
        self.0["requestBody"]["required"] = json!(true);
        self.0["requestBody"]["content"][media_type] = media;
        self
    }

    /// An answer of JSON.
    pub(super) fn answers<T: JsonSchema>(self, status: u16, about: &str) -> Self {
        self.answers_as(status, about, JSON, schema_of::<T>())
    }

    /// An answer of any media type; called again for each that there is.
    pub(super) fn answers_as(
        mut self,
        status: u16,
        about: &str,
        media_type: &str,
        schema: Value,
    ) -> Self {
        let response = &mut self.0["responses"][status.to_string()];
        response["description"] = json!(about);
        response["content"][media_type]["schema"] = schema;
        self
    }

    /// An answer without a body.
    pub(super) fn answers_nothing(mut self, status: u16, about: &str) -> Self {
        self.0["responses"][status.to_string()] = json!({"description": about});
        self
    }

    /// What is answered with this status, as JSON.
    pub(super) fn example(mut self, status: u16, example: Value) -> Self {
        self.0["responses"][status.to_string()]["content"][JSON]["example"] = example;
        self
    }

    /// An answer that says what went wrong.
    pub(super) fn refuses(self, status: u16, about: &str) -> Self {
        self.answers::<ErrorAnswer>(status, about)
    }
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

/// A text that is one of these, the first when it is left out.
pub(super) fn one_of(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names, "default": names.first()})
}

pub(super) fn flag() -> Value {
    json!({"type": "boolean", "default": false})
}

/// At least `least`.
pub(super) fn whole_number(least: u64) -> Value {
    json!({"type": "integer", "minimum": least})
}

/// How many of something come on a page.
pub(super) fn page_limit(default: usize, most: usize) -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": most, "default": default})
}

/// Bytes of any kind.
pub(super) fn bytes() -> Value {
    json!({"type": "string", "format": "binary"})
}
