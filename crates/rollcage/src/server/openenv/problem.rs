//! Validation of JSON objects, with problems in the original's (Pydantic's) format: `{type, loc, msg, input}`.

use serde_json::{Map, Value, json};

/// One problem.
pub(crate) fn problem(kind: &str, loc: &[Value], message: &str, input: &Value) -> Value {
    json!({"type": kind, "loc": loc, "msg": message, "input": input})
}

fn with_context(mut problem: Value, key: &str, value: Value) -> Value {
    if let Some(members) = problem.as_object_mut() {
        members.insert("ctx".to_owned(), json!({key: value}));
    }
    problem
}

/// A body that is not JSON.
pub(crate) fn invalid_json(error: &serde_json::Error, text: &[u8]) -> Value {
    let before: usize = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let position = before + error.column().saturating_sub(1);
    let found = problem(
        "json_invalid",
        &["body".into(), position.into()],
        "JSON decode error",
        &json!({}),
    );
    with_context(found, "error", error.to_string().into())
}

/// Something other than an object where one is expected.
pub(crate) fn no_object(loc: &[Value], input: &Value) -> Value {
    problem(
        "model_attributes_type",
        loc,
        "Input should be a valid dictionary or object to extract fields from",
        input,
    )
}

/// Reads the members of an object and collects their problems.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// The location of the object: `["body"]` or empty.
    location: &'a [Value],
    problems: Vec<Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, location: &'a [Value]) -> Self {
        Fields {
            object,
            location,
            problems: Vec::new(),
        }
    }

    /// A required object.
    pub(crate) fn object(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        let value = self.required(name)?;
        self.as_object(name, value)
    }

    /// An object that may be omitted, but not be null.
    pub(crate) fn optional_object(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        let value = self.object.get(name)?;
        self.as_object(name, value)
    }

    pub(crate) fn string(&mut self, name: &str) -> Option<&'a str> {
        let value = self.required(name)?;
        self.as_string(name, value)
    }

    /// A string of limited length, null, or omitted.
    pub(crate) fn optional_string(&mut self, name: &str, chars_max: usize) -> Option<&'a str> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        let text = self.as_string(name, value)?;
        if text.chars().count() <= chars_max {
            return Some(text);
        }
        let message = format!("String should have at most {chars_max} characters");
        let found = problem("string_too_long", &self.at(name), &message, value);
        self.problems
            .push(with_context(found, "max_length", chars_max.into()));
        None
    }

    /// An integer, as a number or in a string; null counts as omitted.
    pub(crate) fn optional_integer(&mut self, name: &str) -> Option<i64> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        let (kind, message) = match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => return Some(integer),
                (None, Some(float)) if float.fract() == 0.0 => return Some(float as i64),
                (None, _) => (
                    "int_from_float",
                    "Input should be a valid integer, got a number with a fractional part",
                ),
            },
            Value::Bool(is_one) => return Some(i64::from(*is_one)),
            Value::String(text) => match text.trim().parse() {
                Ok(integer) => return Some(integer),
                Err(_) => (
                    "int_parsing",
                    "Input should be a valid integer, unable to parse string as an integer",
                ),
            },
            Value::Null | Value::Array(_) | Value::Object(_) => {
                ("int_type", "Input should be a valid integer")
            }
        };
        self.wrong(kind, name, message, value);
        None
    }

    pub(crate) fn integer(&mut self, name: &str) -> Option<i64> {
        let value = self.required(name)?;
        if value.is_null() {
            self.wrong("int_type", name, "Input should be a valid integer", value);
        }
        self.optional_integer(name)
    }

    /// A non-negative integer.
    pub(crate) fn optional_natural(&mut self, name: &str) -> Option<i64> {
        let integer = self.optional_integer(name)?;
        if integer >= 0 {
            return Some(integer);
        }
        let message = "Input should be greater than or equal to 0";
        self.outside("greater_than_equal", name, message, "ge");
        None
    }

    /// A positive number, as a number or in a string.
    pub(crate) fn optional_positive(&mut self, name: &str) -> Option<f64> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text
                .trim()
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let Some(number) = number else {
            self.wrong("float_type", name, "Input should be a valid number", value);
            return None;
        };
        if number > 0.0 {
            return Some(number);
        }
        self.outside("greater_than", name, "Input should be greater than 0", "gt");
        None
    }

    /// The member must have this value, if it is present.
    pub(crate) fn literal(&mut self, name: &str, expected: &str) {
        let Some(value) = self.object.get(name).filter(|value| *value != expected) else {
            return;
        };
        let message = format!("Input should be '{expected}'");
        let found = problem("literal_error", &self.at(name), &message, value);
        self.problems.push(with_context(
            found,
            "expected",
            format!("'{expected}'").into(),
        ));
    }

    /// No other members are allowed.
    pub(crate) fn only(&mut self, known: &[&str]) {
        for (name, value) in self.object {
            if !known.contains(&name.as_str()) {
                let message = "Extra inputs are not permitted";
                self.wrong("extra_forbidden", name, message, value);
            }
        }
    }

    /// The collected problems, if there are any.
    pub(crate) fn finish(self) -> Result<(), Vec<Value>> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(self.problems)
        }
    }

    fn required(&mut self, name: &str) -> Option<&'a Value> {
        let found = self.object.get(name);
        if found.is_none() {
            let input = Value::Object(self.object.clone());
            self.wrong("missing", name, "Field required", &input);
        }
        found
    }

    fn as_object(&mut self, name: &str, value: &'a Value) -> Option<&'a Map<String, Value>> {
        let object = value.as_object();
        if object.is_none() {
            let message = "Input should be a valid dictionary";
            self.wrong("dict_type", name, message, value);
        }
        object
    }

    fn as_string(&mut self, name: &str, value: &'a Value) -> Option<&'a str> {
        let text = value.as_str();
        if text.is_none() {
            self.wrong("string_type", name, "Input should be a valid string", value);
        }
        text
    }

    fn outside(&mut self, kind: &str, name: &str, message: &str, bound: &str) {
        let value = self.object.get(name).unwrap_or(&Value::Null);
        let found = problem(kind, &self.at(name), message, value);
        self.problems.push(with_context(found, bound, 0.into()));
    }

    fn wrong(&mut self, kind: &str, name: &str, message: &str, value: &Value) {
        self.problems
            .push(problem(kind, &self.at(name), message, value));
    }

    fn at(&self, name: &str) -> Vec<Value> {
        let mut location = self.location.to_vec();
        location.push(name.into());
        location
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(object: Value, read: impl FnOnce(&mut Fields<'_>), expected: Value) {
        let object = object.as_object().unwrap().clone();
        let location = ["body".into()];
        let mut fields = Fields::new(&object, &location);
        read(&mut fields);
        let problems = fields.finish().err().unwrap_or_default();
        assert_eq!(Value::from(problems), expected);
    }

    #[test]
    fn problems_look_like_the_originals() {
        check(
            json!({"seed": -1}),
            |fields| {
                let _ = fields.optional_natural("seed");
            },
            json!([{"type": "greater_than_equal", "loc": ["body", "seed"],
                "msg": "Input should be greater than or equal to 0", "input": -1, "ctx": {"ge": 0}}]),
        );
        check(
            json!({}),
            |fields| {
                let _ = fields.object("action");
            },
            json!([{"type": "missing", "loc": ["body", "action"], "msg": "Field required", "input": {}}]),
        );
        check(
            json!({"type": "x", "extra": 1}),
            |fields| {
                fields.literal("type", "call_tool");
                fields.only(&["type"]);
            },
            json!([
                {"type": "literal_error", "loc": ["body", "type"], "msg": "Input should be 'call_tool'",
                    "input": "x", "ctx": {"expected": "'call_tool'"}},
                {"type": "extra_forbidden", "loc": ["body", "extra"],
                    "msg": "Extra inputs are not permitted", "input": 1},
            ]),
        );
    }

    #[test]
    fn numbers_are_read_as_generously_as_the_original_does() {
        for good in [json!(3), json!(3.0), json!("3"), json!(null), json!(true)] {
            check(
                json!({"seed": good}),
                |fields| {
                    let _ = fields.optional_natural("seed");
                },
                json!([]),
            );
        }
        for bad in [json!(1.5), json!("x"), json!([1])] {
            let object = json!({"seed": bad});
            let mut fields = Fields::new(object.as_object().unwrap(), &[]);
            assert_eq!(fields.optional_natural("seed"), None);
            assert_eq!(fields.finish().unwrap_err().len(), 1);
        }
    }

    #[test]
    fn bad_json_is_located() {
        let text = b"{bad";
        let error = serde_json::from_slice::<Value>(text).unwrap_err();
        let found = invalid_json(&error, text);
        assert_eq!(found["type"], "json_invalid");
        assert_eq!(found["loc"], json!(["body", 1]));
    }
}
