//! The argument `agent_options`. All options end up in the sandbox; nothing is looked up in the server's own
//! environment.

use serde_json::Value;

use rollcage_model::task::{AgentOptions, merge};

use super::super::arguments::{ArgumentError, ToolArguments, wrong};
use super::replace;

/// Given options replace the task's; variables and configuration are merged with the task's.
pub(super) fn read(
    given: &mut ToolArguments,
    options: &mut AgentOptions,
) -> Result<(), ArgumentError> {
    let Some(mut given) = given.object("agent_options", AgentOptions::NAMES)? else {
        return Ok(());
    };
    for (name, place) in [
        ("system_prompt", &mut options.system_prompt),
        ("instructions", &mut options.instructions),
        ("effort", &mut options.effort),
    ] {
        *place = given.text(name)?.or(place.take());
    }
    options.tools = given.texts("tools")?.or(options.tools.take());
    replace(&mut options.disabled_tools, given.texts("disabled_tools")?);
    options
        .env
        .extend(given.text_map("env")?.unwrap_or_default());
    match given.value("config") {
        None => {}
        Some(Value::Object(config)) => merge(&mut options.config, &config),
        Some(other) => return Err(wrong("config", "an object", &other)),
    }
    Ok(())
}
