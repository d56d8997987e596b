//! The arguments `files` and `upload_files`: texts, or other bytes as base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use rollcage_engine::intake::Upload;

use crate::server::rollouts::arguments::{ArgumentError, ToolArguments, wrong};
use crate::task_file::LoadedTask;

/// Both names mean the same; a file takes the place of one that the task has at its path.
const NAMES: [&str; 2] = ["files", "upload_files"];
const WANTED: &str = "an object of texts or of {\"base64\": …, \"executable\": …}";

pub(super) fn read(
    given: &mut ToolArguments,
    loaded: &mut LoadedTask,
) -> Result<(), ArgumentError> {
    for name in NAMES {
        let members = match given.value(name) {
            None => continue,
            Some(Value::Object(members)) => members,
            Some(other) => return Err(wrong(name, WANTED, &other)),
        };
        for (path, value) in members {
            match value {
                Value::String(text) => {
                    loaded.uploads.remove(&path);
                    loaded.task.files.insert(path, text);
                }
                Value::Object(members) => {
                    let about = format!("{name}[{path:?}]");
                    let known = ["base64", "executable"];
                    let mut members = ToolArguments::new(&about, members, &known)?;
                    let encoded = match members.value("base64") {
                        Some(Value::String(encoded)) => encoded,
                        _ => {
                            return Err(format!(
                                "argument `{about}` needs its content as `base64`"
                            ));
                        }
                    };
                    let content = BASE64_STANDARD.decode(encoded);
                    let content = content
                        .map_err(|error| format!("argument `{about}` is no base64: {error}"))?;
                    let is_executable = members.flag("executable")?.unwrap_or(false);
                    loaded.task.files.remove(&path);
                    let file = Upload::File {
                        content,
                        is_executable,
                    };
                    loaded.uploads.insert(path, file);
                }
                other => return Err(wrong(name, WANTED, &other)),
            }
        }
    }
    Ok(())
}
