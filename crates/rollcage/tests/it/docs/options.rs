//! The program's commands and options as `--help` tells them, and what the documentation says of them.

use std::collections::BTreeMap;
use std::process::Command;

use super::page::{Block, Page};

/// Options of other programs that the pages speak of.
const FOREIGN: [&str; 16] = [
    "--cap-add",
    "--enable-auto-tool-choice",
    "--gpus",
    "--help",
    "--logprobs-mode",
    "--max-logprobs",
    "--memory",
    "--privileged",
    "--read-only",
    "--scope",
    "--security-opt",
    "--tmpfs",
    "--tool-call-parser",
    "--tool-strict-level",
    "--user",
    "--workspace",
];

/// The help of every command, by its words: `agent install`.
pub(crate) struct Help {
    commands: BTreeMap<String, String>,
}

impl Help {
    pub(crate) fn read() -> Help {
        let mut help = Help {
            commands: BTreeMap::new(),
        };
        help.add(&[]);
        help
    }

    fn add(&mut self, words: &[&str]) {
        let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(words)
            .arg("--help")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for name in commands_in(&text) {
            self.add(&[words, &[name.as_str()]].concat());
        }
        self.commands.insert(words.join(" "), text);
    }

    fn has_option(&self, command: &str, option: &str) -> bool {
        let text = &self.commands[command];
        let is_end =
            |letter: Option<char>| letter.is_none_or(|it| !it.is_alphanumeric() && it != '-');
        let found = text.match_indices(option);
        found
            .into_iter()
            .any(|(at, _)| is_end(text[at + option.len()..].chars().next()))
    }

    /// What is wrong with a command as prose has it: `rollcage show ID --transcript`.
    fn problem(&self, span: &str) -> Option<String> {
        let words: Vec<&str> = span.split_whitespace().skip(1).collect();
        let first = words.first()?;
        if !first.starts_with(|letter: char| letter.is_ascii_lowercase()) {
            return None;
        }
        let two = words[..words.len().min(2)].join(" ");
        let command = [two.as_str(), *first]
            .into_iter()
            .find(|command| self.commands.contains_key(*command));
        let Some(command) = command else {
            return Some(format!("`{span}`: there is no command `{first}`"));
        };
        let options = words.iter().filter_map(|word| option_in(word));
        let mut unknown = options.filter(|option| !self.has_option(command, option));
        let option = unknown.next()?;
        Some(format!("`{span}`: `{command}` has no option {option}"))
    }

    fn is_known(&self, option: &str) -> bool {
        let mut commands = self.commands.keys();
        FOREIGN.contains(&option) || commands.any(|command| self.has_option(command, option))
    }

    /// What is wrong with a page's inline code.
    pub(crate) fn problems(&self, page: &Page) -> Vec<String> {
        let spans = page.spans().filter_map(|span| {
            if span.starts_with("rollcage ") {
                return self.problem(span);
            }
            let option = option_in(span.split_whitespace().next()?)?;
            (!self.is_known(option)).then(|| format!("`{span}`: no command has this option"))
        });
        spans
            .map(|problem| format!("{}: {problem}", page.name()))
            .collect()
    }
}

/// `--name` of `[--name`, `--name=…`, `--name,` and the like.
fn option_in(word: &str) -> Option<&str> {
    let word = word.trim_start_matches('[');
    let end = word.find(|letter: char| {
        !letter.is_ascii_lowercase() && letter != '-' && !letter.is_ascii_digit()
    });
    let option = &word[..end.unwrap_or(word.len())];
    (option.starts_with("--") && option.len() > 2).then_some(option)
}

/// The names below `Commands:`, each at the same indent.
fn commands_in(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = lines.take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    });
    names.collect()
}

/// Has the program read every `rollcage` command of a block that is not run: with `--help` at the end it stops after that.
/// What bash makes of quotes and variables is bash's.
pub(crate) fn check_parses(block: &Block, place: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("log");
    let stand_in = format!(
        "#!/bin/sh\nout=$({} \"$@\" --help 2>&1) || echo \"$out\" >> {}\n",
        env!("CARGO_BIN_EXE_rollcage"),
        log.display()
    );
    let path = scratch.path().join("rollcage");
    std::fs::write(&path, stand_in).unwrap();
    let made = Command::new("chmod").arg("+x").arg(&path).status();
    assert!(made.unwrap().success());
    for line in block.text.replace("\\\n", " ").lines() {
        let Some(command) = command_in(line) else {
            continue;
        };
        let search_path = format!("{}:/usr/bin:/bin", scratch.path().display());
        let _ = Command::new("bash")
            .args(["-c", command])
            .current_dir(scratch.path())
            .env("PATH", search_path)
            .output()
            .unwrap();
        let refused = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(refused.is_empty(), "{place}: {command}\n{refused}");
    }
}

/// From the word `rollcage` on, where a command of it follows.
fn command_in(line: &str) -> Option<&str> {
    let found = line.match_indices("rollcage ").find(|(at, word)| {
        let before = line[..*at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        before.is_none_or(char::is_whitespace) && after.is_some_and(|it| it.is_ascii_lowercase())
    });
    // A comment is no command.
    let (at, _) = found.filter(|(at, _)| !line[..*at].contains('#'))?;
    Some(&line[at..])
}
