//! Parses a tool's arguments as leniently as the original does: `"7"` is an integer, `"yes"` a boolean, and `null`
//! counts as omitted. Errors never contain a value, since it may be a key.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The arguments of one call, with known names only.
pub(crate) struct ToolArguments {
    values: Map<String, Value>,
}

impl std::fmt::Debug for ToolArguments {
    /// Shows names only, since a value may be a key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.values.keys()).finish()
    }
}

/// What is wrong with an argument, as text for the caller.
pub(crate) type ArgumentError = String;

impl ToolArguments {
    /// Refuses names that are not in `known`; `null` counts as omitted.
    pub(crate) fn new(
        tool: &str,
        mut values: Map<String, Value>,
        known: &[&str],
    ) -> Result<Self, ArgumentError> {
        if let Some(name) = values.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!(
                "unknown argument `{name}`: {tool} takes {}",
                known.join(", ")
            ));
        }
        values.retain(|_, value| !value.is_null());
        Ok(ToolArguments { values })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Those that are given; an empty string counts as omitted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let given = self.values.iter().filter(|(_, value)| **value != "");
        given.map(|(name, _)| name.as_str())
    }

    /// A string; an empty one counts as omitted, as in the original.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ArgumentError> {
        match self.values.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    pub(crate) fn required_text(
        &mut self,
        tool: &str,
        name: &str,
    ) -> Result<String, ArgumentError> {
        self.text(name)?
            .ok_or_else(|| format!("missing required argument `{name}` of {tool}"))
    }

    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ArgumentError> {
        let Some(value) = self.values.remove(name) else {
            return Ok(None);
        };
        let wanted = "an array of strings";
        let Value::Array(items) = value else {
            return Err(wrong(name, wanted, &value));
        };
        let texts: Result<Vec<String>, ArgumentError> = items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong(name, wanted, &other)),
            })
            .collect();
        texts.map(Some)
    }

    /// An object of strings, such as files by path.
    pub(crate) fn text_map(
        &mut self,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, ArgumentError> {
        let wanted = "an object of strings";
        match self.values.remove(name) {
            None => Ok(None),
            Some(Value::Object(members)) => {
                let texts: Result<_, ArgumentError> = members
                    .into_iter()
                    .map(|(key, value)| match value {
                        Value::String(text) => Ok((key, text)),
                        other => Err(wrong(name, wanted, &other)),
                    })
                    .collect();
                texts.map(Some)
            }
            Some(other) => Err(wrong(name, wanted, &other)),
        }
    }

    /// A value in the form that a task file has it in.
    pub(crate) fn parsed<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ArgumentError> {
        let parsed = self.values.remove(name).map(serde_json::from_value);
        parsed
            .transpose()
            .map_err(|error| format!("argument `{name}`: {error}"))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ArgumentError> {
        let Some(value) = self.values.remove(name) else {
            return Ok(None);
        };
        let flag = match &value {
            Value::Bool(flag) => Some(*flag),
            Value::Number(number) => match number.as_f64() {
                Some(0.0) => Some(false),
                Some(1.0) => Some(true),
                _ => None,
            },
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        flag.map(Some)
            .ok_or_else(|| wrong(name, "true or false", &value))
    }

    pub(crate) fn integer(&mut self, name: &str) -> Result<Option<i64>, ArgumentError> {
        let Some(value) = self.values.remove(name) else {
            return Ok(None);
        };
        integer_of(&value)
            .map(Some)
            .ok_or_else(|| wrong(name, "an integer", &value))
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, ArgumentError> {
        let Some(value) = self.values.remove(name) else {
            return Ok(None);
        };
        number_of(&value)
            .map(Some)
            .ok_or_else(|| wrong(name, "a number", &value))
    }

    /// An object whose members are parsed in the same way.
    pub(crate) fn object(
        &mut self,
        name: &str,
        known: &[&str],
    ) -> Result<Option<Self>, ArgumentError> {
        match self.values.remove(name) {
            None => Ok(None),
            Some(Value::Object(members)) => ToolArguments::new(name, members, known).map(Some),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name)
    }
}

pub(crate) fn integer_of(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            // Exact up to 2^53.
            let whole = number
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() < 9.0e15)?;
            Some(whole as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(flag) => Some(i64::from(*flag)),
        _ => None,
    }
}

fn number_of(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        _ => None,
    };
    number.filter(|number| number.is_finite())
}

pub(crate) fn wrong(name: &str, wanted: &str, got: &Value) -> ArgumentError {
    let kind = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "this string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    format!("argument `{name}` must be {wanted}, not {kind}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> ToolArguments {
        let Value::Object(values) = value else {
            panic!("an object");
        };
        ToolArguments::new("tool", values, &["a", "b"]).unwrap()
    }

    #[test]
    fn values_are_taken_as_leniently_as_the_original_does() {
        let integer = |value: Value| arguments(json!({ "a": value })).integer("a");
        assert_eq!(integer(json!("7")), Ok(Some(7)));
        assert_eq!(integer(json!(7.0)), Ok(Some(7)));
        assert_eq!(integer(json!(null)), Ok(None));
        assert_eq!(
            integer(json!(1.5)),
            Err("argument `a` must be an integer, not this number".to_owned())
        );
        assert!(integer(json!("zz")).is_err() && integer(json!([])).is_err());
        let flag = |value: Value| arguments(json!({ "a": value })).flag("a");
        assert_eq!(flag(json!("yes")), Ok(Some(true)));
        assert_eq!(flag(json!(0)), Ok(Some(false)));
        assert!(flag(json!("maybe")).is_err() && flag(json!(2)).is_err());
        let number = |value: Value| arguments(json!({ "a": value })).number("a");
        assert_eq!(number(json!(3)), Ok(Some(3.0)));
        assert_eq!(number(json!("0.5")), Ok(Some(0.5)));
        assert!(number(json!("nan")).is_err());
        let text = |value: Value| arguments(json!({ "a": value })).text("a");
        assert_eq!(text(json!("")), Ok(None));
        assert!(text(json!(3)).is_err());
        let texts = |value: Value| arguments(json!({ "a": value })).texts("a");
        assert_eq!(texts(json!(["x"])), Ok(Some(vec!["x".to_owned()])));
        assert!(texts(json!("x")).is_err() && texts(json!([1])).is_err());
    }

    #[test]
    fn errors_name_the_argument_and_never_its_value() {
        let values = json!({"c": "sk-secret"}).as_object().cloned().unwrap();
        let error = ToolArguments::new("tool", values, &["a", "b"]).unwrap_err();
        assert_eq!(error, "unknown argument `c`: tool takes a, b");
        let given = arguments(json!({"a": "sk-secret"}));
        assert_eq!(format!("{given:?}"), "{\"a\"}");
        let error = arguments(json!({"a": "sk-secret"})).integer("a");
        assert!(!error.unwrap_err().contains("secret"));
    }
}
