//! A request as `multipart/form-data`: a part `request` with the JSON object, and parts `files` with any bytes, whose file
//! name is the path inside. Web pages of other origins may send such forms without asking, so what comes from a browser is
//! refused.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

const PARTS_MAX: usize = 10_000;

/// The boundary of a form, if the request has one.
pub(super) fn boundary(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|boundary| (1..=70).contains(&boundary.len()))
}

pub(super) fn is_from_a_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// The arguments of a form, with its files as base64.
pub(super) fn arguments(boundary: &str, body: &[u8]) -> Result<Map<String, Value>, String> {
    let mut request: Option<Map<String, Value>> = None;
    let mut files = Map::new();
    for part in parts(boundary, body)? {
        match (part.name.as_str(), part.filename) {
            ("request", _) if request.is_some() => {
                return Err("the form has two parts `request`".to_owned());
            }
            ("request", _) => {
                let parsed = serde_json::from_slice(part.content);
                // Without the text, which may contain a key.
                request = Some(parsed.map_err(|error| {
                    format!(
                        "the part `request` is no JSON object (line {}, column {})",
                        error.line(),
                        error.column()
                    )
                })?);
            }
            ("files", Some(path)) => {
                let file = json!({"base64": BASE64_STANDARD.encode(part.content)});
                if files.insert(path.clone(), file).is_some() {
                    return Err(format!("the form has the file {path:?} twice"));
                }
            }
            ("files", None) => {
                return Err("a part `files` needs a file name: its path inside".to_owned());
            }
            (name, _) => {
                return Err(format!(
                    "unknown part {name:?}: a form has a part `request` with the JSON object, and parts `files`"
                ));
            }
        }
    }
    let mut request = request.ok_or("the form has no part `request` with the JSON object")?;
    if files.is_empty() {
        return Ok(request);
    }
    match request.get_mut("files") {
        None | Some(Value::Null) => {
            request.insert("files".to_owned(), files.into());
        }
        Some(Value::Object(given)) => given.extend(files),
        Some(_) => return Err("`files` of the part `request` must be an object".to_owned()),
    }
    Ok(request)
}

struct Part<'a> {
    name: String,
    filename: Option<String>,
    content: &'a [u8],
}

fn parts<'a>(boundary: &str, body: &'a [u8]) -> Result<Vec<Part<'a>>, String> {
    let broken =
        || "the form is cut short, or its boundary is not the one of its header".to_owned();
    let first = format!("--{boundary}");
    let delimiter = format!("\r\n{first}");
    let mut rest = match body.strip_prefix(first.as_bytes()) {
        Some(rest) => rest,
        None => split(body, delimiter.as_bytes()).ok_or_else(broken)?.1,
    };
    let mut parts = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        let (_, part) = split(rest, b"\r\n").ok_or_else(broken)?;
        let (content, after) = split(part, delimiter.as_bytes()).ok_or_else(broken)?;
        let (head, content) = match content.strip_prefix(b"\r\n") {
            Some(content) => (&content[..0], content),
            None => split(content, b"\r\n\r\n").ok_or_else(broken)?,
        };
        rest = after;
        let head = std::str::from_utf8(head).map_err(|_| "a part's head is no UTF-8")?;
        let disposition = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_it = name.trim().eq_ignore_ascii_case("content-disposition");
            is_it.then_some(value)
        });
        let (_, parameters) = disposition
            .and_then(|value| value.split_once(';'))
            .ok_or("a part has no name")?;
        parts.push(Part {
            name: parameter(parameters, "name").ok_or("a part has no name")?,
            filename: parameter(parameters, "filename"),
            content,
        });
        if parts.len() > PARTS_MAX {
            return Err(format!("the form has more than {PARTS_MAX} parts"));
        }
    }
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let first = *at.first()?;
    let mut from = 0;
    loop {
        let found = from + bytes[from..].iter().position(|byte| *byte == first)?;
        if bytes[found..].starts_with(at) {
            return Some((&bytes[..found], &bytes[found + at.len()..]));
        }
        from = found + 1;
    }
}

/// A parameter such as `name="a"`: quoted, with backslashes before quotes and themselves, or a bare word.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim().trim_start_matches(';').trim();
        let (value, left) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                let (word, left) = after.split_once(';').unwrap_or((after, ""));
                (word.trim().to_owned(), left)
            }
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = left;
    }
}

fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (index, '"') => return Some((value, &text[index + 1..])),
            (_, '\\') => match characters.next()? {
                (_, escaped @ ('"' | '\\')) => value.push(escaped),
                (_, other) => value.extend(['\\', other]),
            },
            (_, character) => value.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Result<Value, String> {
        arguments("B", body).map(Value::from)
    }

    #[test]
    fn a_form_is_the_same_request_with_files_of_any_bytes() {
        let body = b"preamble\r\n--B\r\nContent-Disposition: form-data; name=\"request\"\r\n\r\n\
            {\"instruction\": \"go\", \"files\": {\"a\": \"text\"}}\r\n--B\r\n\
            content-disposition: form-data; filename=\"d/\\\"x\\\".bin\"; name=files\r\nContent-Type: a/b\r\n\r\n\
            \0\r\n--not\xff\r\n--B--\r\n";
        let file = json!({"base64": BASE64_STANDARD.encode(b"\0\r\n--not\xff")});
        assert_eq!(
            read(body),
            Ok(json!({"instruction": "go", "files": {"a": "text", "d/\"x\".bin": file}}))
        );
    }

    #[test]
    fn a_wrong_form_says_what_is_wrong() {
        let part = |head: &str, content: &str| {
            format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
        };
        let request = part("name=\"request\"", "{}");
        let file = part("name=\"files\"; filename=\"a\"", "x");
        for (body, expect) in [
            (String::new(), "cut short"),
            (request.clone(), "cut short"),
            ("--C--".to_owned(), "cut short"),
            (format!("{file}--B--"), "no part `request`"),
            (format!("{request}{request}--B--"), "two parts `request`"),
            (format!("{request}{file}{file}--B--"), "\"a\" twice"),
            (
                format!("{}--B--", part("name=\"files\"", "x")),
                "needs a file name",
            ),
            (
                format!("{}--B--", part("name=\"other\"", "x")),
                "unknown part \"other\"",
            ),
            (
                format!("{}--B--", part("name=\"request\"", "[1]")),
                "no JSON object",
            ),
            ("--B\r\n\r\nx\r\n--B--".to_owned(), "has no name"),
        ] {
            let error = read(body.as_bytes()).unwrap_err();
            assert!(error.contains(expect), "{body:?}: {error}");
        }
    }

    #[test]
    fn the_boundary_is_read_from_the_header() {
        let of = |text: &'static str| {
            let value = header::HeaderValue::from_static(text);
            boundary(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]))
        };
        assert_eq!(of("multipart/form-data; boundary=B").as_deref(), Some("B"));
        let quoted = of("Multipart/Form-Data; charset=x; boundary=\"a b\"");
        assert_eq!(quoted.as_deref(), Some("a b"));
        assert_eq!(of("multipart/mixed; boundary=B"), None);
        assert_eq!(of("application/json"), None);
    }
}
