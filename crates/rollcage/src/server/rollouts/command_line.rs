//! A client's request as the command that does the same on one's own machine.
//!
//! What flags can say is said by flags. A task that needs more becomes a task file, which the command writes first. Keys
//! are never part of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rollcage_dialect::EndpointDialect;
use rollcage_engine::intake::{ModelOptions, RolloutRequest};
use rollcage_model::network::{Network, Phase, Policy};
use rollcage_model::script::Step;
use rollcage_model::task::{COMMAND_TIMEOUT_S, Mode, RewardSource, SetupUser, Task};

use super::request::RolloutArguments;

/// The variable that the command reads the API key from.
const KEY_VARIABLE: &str = "API_KEY";
/// Of a task file, in a shell.
const END: &str = "END_OF_TASK";
/// A longer command has a line for each flag.
const LINE_CHARS_MAX: usize = 100;

/// A command and what it cannot say.
pub(crate) struct ShellCommand {
    pub(crate) text: String,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn of(arguments: &RolloutArguments) -> ShellCommand {
    let RolloutArguments { request, count } = arguments;
    let mut flags = Flags::default();
    let mut notes = Vec::new();
    let mut text = String::new();
    let rest = flags.add_task(&request.task);
    if rest != Task::default() {
        let name = file_name(&request.task);
        text = task_file(&request.task, &name);
        notes.push(format!(
            "it writes the task to {name} first: not all of it can be said with flags"
        ));
        flags = Flags::default();
        flags.words.push(quote(&name));
    }
    flags.add_run(request, *count, &mut notes);
    add_notes(request, &mut notes);
    text += &flags.join();
    ShellCommand { text, notes }
}

fn add_notes(request: &RolloutRequest, notes: &mut Vec<String>) {
    if !request.uploads.is_empty() {
        let paths: Vec<_> = request.uploads.keys().map(String::as_str).collect();
        notes.push(format!(
            "files that are no text are left out: add each with --files PATH=@FILE ({})",
            paths.join(", ")
        ));
    }
    let mut servers = request.task.mcp.values();
    if servers.any(|server| !server.headers.is_empty()) {
        notes.push(
            "the headers of MCP servers are masked in the file: write them as ${VARIABLE} there"
                .to_owned(),
        );
    }
}

/// The flags of a command, each with its value and quoted for a shell.
#[derive(Default)]
struct Flags {
    words: Vec<String>,
}

impl Flags {
    fn add(&mut self, name: &str, value: &str) {
        // Otherwise it would be taken for a flag.
        let between = if value.starts_with('-') { '=' } else { ' ' };
        self.words
            .push(format!("--{name}{between}{}", quote(value)));
    }

    fn add_all<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a String>) {
        for value in values {
            self.add(name, value);
        }
    }

    fn add_some(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, &value.to_string());
        }
    }

    fn add_pairs(&mut self, name: &str, pairs: &BTreeMap<String, String>) {
        for (key, value) in pairs {
            self.add(name, &format!("{key}={value}"));
        }
    }

    /// Adds what flags can say of a task, and returns the task without it.
    fn add_task(&mut self, task: &Task) -> Task {
        let mut rest = task.clone();
        self.add("instruction", &task.instruction);
        if !task.id.is_empty() {
            self.add("task-id", &task.id);
        }
        self.add_all("setup", &task.setup);
        self.add_all("verify", &task.verify);
        (rest.instruction, rest.id) = (String::new(), String::new());
        (rest.setup, rest.verify) = (Vec::new(), Vec::new());
        if let Some(commands) = task
            .solution
            .iter()
            .map(shell_command)
            .collect::<Option<Vec<_>>>()
        {
            self.add_all("solution", commands);
            rest.solution = Vec::new();
        }
        // A flag would split such a path elsewhere, and read such a text from a file.
        let fits = |(path, text): (&String, &String)| !path.contains('=') && !text.starts_with('@');
        if task.files.iter().all(fits) {
            self.add_pairs("files", &task.files);
            rest.files = BTreeMap::new();
        }
        self.add_pairs("env", &task.env);
        rest.env = BTreeMap::new();
        self.add_all("artifacts", &task.artifacts);
        rest.artifacts = Vec::new();
        if std::mem::take(&mut rest.patch) {
            self.words.push("--patch".to_owned());
        }
        self.add_some("reward", rest.reward.take().map(RewardSource::as_str));
        let range = rest.reward_range.take();
        self.add_some(
            "reward-range",
            range.map(|[low, high]| format!("{low},{high}")),
        );
        if let Some(tests) = &task.tests
            && let Some(words) = tests.passed.words()
        {
            self.add_all("tests-passed", &words);
            self.add("tests-report", &tests.report);
            rest.tests = None;
        }
        for trust in rest.verify_trust.drain(..) {
            self.add("verify-trust", trust.as_str());
        }
        self.add_place(task, &mut rest);
        self.add_network(&task.network, &mut rest);
        rest
    }

    /// Adds how and where a task runs.
    fn add_place(&mut self, task: &Task, rest: &mut Task) {
        self.add_some("agent-timeout-s", rest.agent_timeout_s.take());
        if task.command_timeout_s != COMMAND_TIMEOUT_S {
            self.add_some("command-timeout-s", Some(task.command_timeout_s));
            rest.command_timeout_s = COMMAND_TIMEOUT_S;
        }
        self.add_numbers("limits", &serde_json::json!(task.limits));
        self.add_numbers("budget", &serde_json::json!(task.budget));
        (rest.limits, rest.budget) = Default::default();
        self.add_some("timezone", rest.timezone.take());
        self.add_some("locale", rest.locale.take());
        self.add_some("driver", rest.driver.take().map(|driver| driver.as_str()));
        if std::mem::take(&mut rest.mode) != Mode::default() {
            self.add("mode", task.mode.as_str());
        }
        if std::mem::take(&mut rest.setup_user) != SetupUser::default() {
            self.add("setup-user", task.setup_user.as_str());
        }
        if std::mem::take(&mut rest.git_strip) {
            self.words.push("--git-strip".to_owned());
        }
        self.add_some("effort", rest.agent.effort.take());
        self.add_some("agent-log-level", rest.agent.log_level.take());
        self.add_some(
            "tools",
            rest.agent.tools.take().map(|tools| tools.join(",")),
        );
        let disabled = std::mem::take(&mut rest.agent.disabled_tools);
        if !disabled.is_empty() {
            self.add("disable-tools", &disabled.join(","));
        }
    }

    /// A table of numbers, as `NAME=N,…`.
    fn add_numbers(&mut self, name: &str, table: &serde_json::Value) {
        let members = table.as_object().into_iter().flatten();
        let numbers = members.filter(|(_, value)| value.is_number());
        let numbers: Vec<_> = numbers
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        if !numbers.is_empty() {
            self.add(name, &numbers.join(","));
        }
    }

    fn add_network(&mut self, network: &Network, rest: &mut Task) {
        // --allow-host gives the agent a network, if nothing is said about it.
        if network.agent.is_none() && !network.allow_hosts.is_empty() {
            return;
        }
        let phases = [
            (Phase::Setup, &network.setup),
            (Phase::Agent, &network.agent),
            (Phase::Verify, &network.verify),
        ];
        for (phase, policy) in phases {
            let policy = match policy {
                None => continue,
                Some(Policy::None) => "none".to_owned(),
                Some(Policy::Open) => "open".to_owned(),
                Some(Policy::Allowlist(hosts)) if hosts.is_empty() => "allowlist".to_owned(),
                Some(Policy::Allowlist(hosts)) => {
                    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
                    hosts.join(",")
                }
            };
            self.add("network", &format!("{}={policy}", phase.as_str()));
        }
        for host in &network.allow_hosts {
            self.add("allow-host", &host.to_string());
        }
        rest.network = Network::default();
    }

    /// Adds what is not part of the task.
    fn add_run(&mut self, request: &RolloutRequest, count: usize, notes: &mut Vec<String>) {
        if request.agent != "opencode" {
            self.add("agent", &request.agent);
        }
        if count > 1 {
            self.words.push(format!("-n {count}"));
        }
        self.add_some("group", request.group.as_ref());
        self.add_pairs("labels", &request.labels);
        let endpoint = &request.endpoint;
        self.add_some("endpoint", endpoint.kind.as_ref());
        self.add_some("base-url", endpoint.base_url.as_ref());
        self.add_some("model", endpoint.model.as_ref());
        let dialect = endpoint.dialect.map(|dialect| match dialect {
            EndpointDialect::Chat => "chat",
            EndpointDialect::Anthropic => "anthropic",
        });
        self.add_some("dialect", dialect);
        self.add_some(
            "thinking",
            endpoint.is_thinking_disabled.map(|is_off| !is_off),
        );
        if endpoint.key.is_some() {
            self.add("api-key-env", KEY_VARIABLE);
            notes.push(format!(
                "put the API key into the variable {KEY_VARIABLE} first"
            ));
        } else if let Some(kind) = endpoint.kind.as_ref().filter(|kind| *kind != "scripted") {
            notes.push(format!(
                "the server's own settings of `{kind}` are not in it: `rollcage endpoint list` shows the variables"
            ));
        }
        let (options, default) = (&request.options, ModelOptions::default());
        if options.max_tokens_cap != default.max_tokens_cap {
            self.add_some("max-tokens-cap", Some(options.max_tokens_cap));
        }
        if options.top_logprobs != default.top_logprobs {
            self.add_some("top-logprobs", Some(options.top_logprobs));
        }
        self.add_some("temperature", options.temperature);
        self.add_some("sampling", options.sampling.as_ref());
        self.add_some("constrained", options.constrained.as_ref());
    }

    fn join(&self) -> String {
        let line = format!("rollcage run {}", self.words.join(" "));
        match line.chars().count() <= LINE_CHARS_MAX && !line.contains('\n') {
            true => line,
            false => format!("rollcage run \\\n  {}", self.words.join(" \\\n  ")),
        }
    }
}

/// The command of a step that does nothing else.
fn shell_command(step: &Step) -> Option<&String> {
    let command = step.run.as_ref()?;
    (*step == Step::shell(command.clone())).then_some(command)
}

fn file_name(task: &Task) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    let is_fine = !task.id.is_empty() && task.id.len() <= 64 && task.id.chars().all(is_plain);
    match is_fine && !task.id.starts_with('-') {
        true => format!("{}.json", task.id),
        false => "task.json".to_owned(),
    }
}

/// JSON has no line that could end it: text is on one line, with its line breaks escaped.
fn task_file(task: &Task, name: &str) -> String {
    let text = serde_json::to_string_pretty(task).unwrap_or_default();
    format!("cat > {name} <<'{END}'\n{text}\n{END}\n")
}

/// A word as a shell reads it back. Control characters are spelled out, so that none reaches the terminal it is pasted
/// into.
fn quote(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_@%+=:,./-".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let is_control = |letter: char| letter.is_control() && letter != '\n';
    if !text.contains(is_control) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for letter in text.chars() {
        match letter {
            '\\' | '\'' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_words_back() {
        for text in [
            "",
            "plain-1.txt",
            "two words",
            "it's \"$HOME\" `id` $(id) \\ !",
            "line\nline",
            "tab\tbell\u{7}esc\u{1b}[31m back\\slash 'quote'\r\n",
            "ünï ☃ 日本",
        ] {
            let script = format!("printf %s {}", quote(text));
            let ran = std::process::Command::new("bash")
                .args(["-c", &script])
                .env("LC_ALL", "C.UTF-8")
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(ran.stdout).unwrap(), text, "{script}");
            assert!(!script.contains('\u{1b}'));
        }
    }
}
