//! JUnit's XML: `testcase` elements in `testsuite` elements, as pytest, Node and most other test runners write it.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use super::{DEPTH_MAX, ReportError, TestCase};

/// Elements of a test that has not passed.
const OTHERS: [&str; 3] = ["failure", "error", "skipped"];
/// Values of a test's `status` that say the same without an element.
const NOT_RUN: [&str; 3] = ["notrun", "disabled", "skipped"];

/// A test whose element is open.
struct OpenCase {
    name: String,
    class: Option<String>,
    file: Option<String>,
    is_passed: bool,
}

pub(super) fn read(text: &str, mut each: impl FnMut(&TestCase<'_>)) -> Result<(), ReportError> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    // By depth: the name of a suite, for elements that are one.
    let mut open: Vec<Option<String>> = Vec::new();
    let mut case: Option<OpenCase> = None;
    let mut has_root = false;
    loop {
        match reader.read_event()? {
            Event::Start(element) => {
                let name = element.local_name();
                let name = name.as_ref();
                if open.is_empty() && !matches!(name, "testsuites" | "testsuite") {
                    return Err(ReportError::NoSuite);
                }
                if open.len() == DEPTH_MAX || (case.is_some() && name == "testcase") {
                    return Err(ReportError::Nesting);
                }
                has_root = true;
                let mut suite = None;
                match (name, &mut case) {
                    ("testsuite", _) => suite = attribute(&element, "name")?,
                    ("testcase", _) => case = Some(open_case(&element)?),
                    (name, Some(case)) if OTHERS.contains(&name) => case.is_passed = false,
                    _ => {}
                }
                open.push(suite);
            }
            Event::End(element) => {
                open.pop();
                if element.local_name().as_ref() == "testcase"
                    && let Some(case) = case.take()
                {
                    let suite = open.iter().rev().flatten().next();
                    each(&TestCase {
                        name: &case.name,
                        class: case.class.as_deref(),
                        file: case.file.as_deref(),
                        suite: suite.map(String::as_str),
                        is_passed: case.is_passed,
                    });
                }
            }
            Event::Eof if !open.is_empty() => return Err(ReportError::Unfinished),
            Event::Eof if !has_root => return Err(ReportError::NoSuite),
            Event::Eof => return Ok(()),
            // What programs print, and declarations of types and entities, which nothing here refers to.
            Event::Empty(_)
            | Event::Text(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_)
            | Event::GeneralRef(_) => {}
        }
    }
}

fn open_case(element: &BytesStart<'_>) -> Result<OpenCase, ReportError> {
    let status = attribute(element, "status")?;
    Ok(OpenCase {
        name: attribute(element, "name")?.unwrap_or_default(),
        class: attribute(element, "classname")?,
        file: attribute(element, "file")?,
        is_passed: !status.is_some_and(|status| NOT_RUN.contains(&status.as_str())),
    })
}

/// The first attribute of a name. That a name is there once is not checked: it takes the square of their number.
fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, ReportError> {
    for attribute in element.attributes().with_checks(false) {
        let attribute = attribute?;
        if attribute.key.as_ref() == name {
            let value = attribute.normalized_value(XmlVersion::Implicit1_0)?;
            return Ok(Some(value.into_owned()));
        }
    }
    Ok(None)
}
