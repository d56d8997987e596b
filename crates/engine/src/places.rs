//! Where things stand in a sandbox: what a task brings along before and after the agent, and what is left there for
//! verifiers to read, at the places where the original has it.

use rollcage_model::task::{INSTRUCTION, TEST_SCRIPT, TaskError, is_test, path_inside};
use rollcage_sandbox::{AGENT_LOGS, Sandbox};

use crate::rollout::Plan;

/// A file of a task, by its absolute path inside.
pub(crate) type Placed<'a> = (String, &'a [u8]);

/// What is there before setup commands run: the instruction, and the task's files but for its tests.
pub(crate) fn before_setup(plan: &Plan) -> Result<Vec<Placed<'_>>, TaskError> {
    let mut files = files(plan)?;
    files.retain(|(path, _)| !is_test(path));
    if files.iter().all(|(path, _)| path != INSTRUCTION) {
        let instruction = plan.task.instruction.as_bytes();
        files.push((INSTRUCTION.to_owned(), instruction));
    }
    Ok(files)
}

/// What arrives when the agent is dead.
pub(crate) fn tests(plan: &Plan) -> Result<Vec<Placed<'_>>, TaskError> {
    let mut files = files(plan)?;
    files.retain(|(path, _)| is_test(path));
    let script = plan.task.test_script();
    files.extend(script.map(|script| (TEST_SCRIPT.to_owned(), script.as_bytes())));
    Ok(files)
}

fn files(plan: &Plan) -> Result<Vec<Placed<'_>>, TaskError> {
    let texts = plan.task.files.iter();
    let texts = texts.map(|(path, text)| (path, text.as_bytes()));
    let uploads = plan.uploads.iter();
    let uploads = uploads.map(|(path, content)| (path, content.as_slice()));
    let placed = texts.chain(uploads);
    placed
        .map(|(path, content)| Ok((path_inside(path)?, content)))
        .collect()
}

/// Leaves the agent's own account and the proxy's log to verifiers. A full or locked directory there is the agent's doing
/// and no failure of ours.
pub(crate) async fn leave_logs(sandbox: &dyn Sandbox, agent: &str, account: &str, proxy: &str) {
    for (name, text) in [
        (format!("{agent}.jsonl"), account),
        ("proxy.log".to_owned(), proxy),
    ] {
        let path = format!("{AGENT_LOGS}/{name}");
        let content = text.as_bytes().to_vec();
        let _ = sandbox.write_file(&path, 0o644, content).await;
    }
}
