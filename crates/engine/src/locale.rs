//! Whether a sandbox has the time zone and the locale that its task asks for. Asked after setup, which may install them.

use std::io::ErrorKind;
use std::time::Duration;

use rollcage_agents::base_environment;
use rollcage_model::ending::Cause;
use rollcage_model::finding::{Code, Finding};
use rollcage_model::task::Task;
use rollcage_sandbox::{Error, Sandbox};

use crate::judge::Ending;
use crate::shell::run_command;

const ZONES: &str = "/usr/share/zoneinfo";
/// More than any time zone's file has.
const ZONE_BYTES_MAX: u64 = 1 << 20;
/// For a command that does nothing.
const LIMIT: Duration = Duration::from_secs(10);

/// Refuses a time zone that is not there: programs would silently use UTC. A locale that is not there is a finding.
pub(crate) async fn check(sandbox: &dyn Sandbox, task: &Task) -> Result<Option<Finding>, Ending> {
    if let Some(zone) = &task.timezone {
        match sandbox
            .read_file(&format!("{ZONES}/{zone}"), ZONE_BYTES_MAX)
            .await
        {
            Ok(_) => {}
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Err(no_zone(zone));
            }
            Err(Error::NotRegular { .. }) => return Err(no_zone(zone)),
            Err(error) => return Err(error.into()),
        }
    }
    let Some(locale) = &task.locale else {
        return Ok(None);
    };
    // A shell says so when it cannot use its locale, and is always there.
    let env = base_environment(&task.place_variables());
    let tried = run_command(sandbox, ":", env, "/", LIMIT).await?;
    let text = format!(
        "the machine has no locale {locale}, so programs inside use C: install it there, or take one that `locale -a` lists"
    );
    let is_missing = tried.stderr.contains("setlocale");
    Ok(is_missing.then(|| Finding::info(Code::LocaleMissing, text)))
}

fn no_zone(zone: &str) -> Ending {
    let text = format!(
        "`timezone`: there is no {zone} in {ZONES} of this machine: give a name that is there, or install tzdata"
    );
    Ending::new(Cause::SetupFailed, text)
}

#[cfg(test)]
mod tests {
    use rollcage_sandbox::{Sandboxes, Spec};
    use rollcage_testkit::sandbox::{CommandBehaviour, FakeSandboxes};

    use super::*;

    fn complains() -> CommandBehaviour {
        CommandBehaviour::program(|mut guest| async move {
            guest.complain("warning: setlocale: LC_ALL").await;
            0
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_zone_must_be_there_and_a_locale_should() {
        let sandboxes = FakeSandboxes::new(|_| complains());
        let sandbox = sandboxes.start(Spec::default()).await.unwrap();
        let mut task = Task {
            timezone: Some("Europe/Berlin".to_owned()),
            ..Task::default()
        };
        let error = check(&*sandbox, &task).await.unwrap_err();
        assert_eq!(error.cause, Cause::SetupFailed);
        let path = format!("{ZONES}/Europe/Berlin");
        sandbox.write_file(&path, 0o644, Vec::new()).await.unwrap();
        assert_eq!(check(&*sandbox, &task).await.unwrap(), None);
        task.locale = Some("xx_XX.UTF-8".to_owned());
        let finding = check(&*sandbox, &task).await.unwrap().unwrap();
        assert_eq!(finding.code, Code::LocaleMissing);
    }
}
