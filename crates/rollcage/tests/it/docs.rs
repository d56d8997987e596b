//! The documentation held to the program: commands are run, or at least read by it, options exist, links lead somewhere,
//! and the reference is complete.

use std::collections::BTreeSet;
use std::path::Path;

mod options;
mod page;
mod reference;
mod shell;

use options::Help;
use page::{Marker, Page, pages, root};
use shell::Shell;

#[test]
fn the_commands_of_every_page_run_and_what_they_leave_is_in_the_reference() {
    let pages = pages();
    let left: BTreeSet<String> = std::thread::scope(|scope| {
        let has_commands = |page: &&Page| page.blocks.iter().any(|block| block.language == "sh");
        let running: Vec<_> = pages
            .iter()
            .filter(has_commands)
            .map(|page| scope.spawn(|| Shell::new().run(page)))
            .collect();
        assert!(running.len() > 5, "{} pages", running.len());
        let ended = running.into_iter().map(|page| page.join());
        ended
            .flat_map(|left| left.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let documented = reference::documented();
    let top = ["rollouts"];
    for name in left.iter().filter(|name| !top.contains(&name.as_str())) {
        assert!(
            documented.contains(name),
            "docs/reference.md lacks `{name}`"
        );
    }
    assert!(
        left.contains("result.json") && left.contains("sessions"),
        "{left:?}"
    );
}

#[test]
fn commands_that_are_not_run_are_read_by_the_program() {
    let mut count = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "sh") {
            if matches!(block.marker, Some(Marker::NotRun(_))) {
                options::check_parses(block, &format!("{}:{}", page.name(), block.line));
                count += 1;
            }
        }
    }
    assert!(count > 5, "{count} blocks");
}

#[test]
fn commands_and_options_in_the_text_exist() {
    let help = Help::read();
    let problems: Vec<String> = pages()
        .iter()
        .flat_map(|page| help.problems(page))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_in_the_index() {
    let mut pages = pages();
    for name in [
        "AGENTS.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ] {
        pages.push(Page::read(root().join(name)));
    }
    let mut problems = Vec::new();
    for page in &pages {
        let targets = page.prose.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        for target in targets.filter(|target| !target.contains("://")) {
            if !leads_somewhere(&page.path, target) {
                problems.push(format!("{}: {target}", page.name()));
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    let index = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in pages.iter().map(Page::name) {
        let Some(name) = page
            .strip_prefix("docs/")
            .filter(|name| *name != "README.md")
        else {
            continue;
        };
        assert!(
            index.contains(&format!("]({name})")),
            "docs/README.md lacks {name}"
        );
    }
}

fn leads_somewhere(from: &Path, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => from.to_owned(),
        file => from.parent().unwrap().join(file),
    };
    if anchor.is_empty() {
        return path.exists();
    }
    let Ok(text) = std::fs::read_to_string(path) else {
        return false;
    };
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| anchor_of(line.trim_start_matches('#').trim()));
    anchors.any(|it| it == anchor)
}

/// As GitHub makes it of a heading.
fn anchor_of(heading: &str) -> String {
    let letters = heading.to_lowercase();
    let kept = letters
        .chars()
        .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}
