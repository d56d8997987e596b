use rollcage_model::record::Ended;

use super::*;
use crate::proxy::{Problem, Stopped};

fn exit(code: i32) -> Stop {
    Stop::Exited(ExitStatus {
        code: Some(code),
        signal: None,
    })
}

fn answered() -> Calls {
    Calls {
        is_answered: true,
        ..Calls::default()
    }
}

fn failed(cause: Cause) -> Calls {
    Calls {
        failure: Some(Problem::new(cause, "it failed")),
        ..answered()
    }
}

fn refused_by_itself(calls: Calls, cause: Cause) -> Calls {
    Calls {
        agents_doing: Some(cause),
        ..calls
    }
}

fn stopped(calls: Calls, by: &str, is_at_first: bool) -> Calls {
    let by = by.to_owned();
    Calls {
        stopped: Some(Stopped { by, is_at_first }),
        ..calls
    }
}

fn cut() -> Calls {
    Calls {
        is_cut: true,
        ..answered()
    }
}

fn said(why: &str) -> End {
    End::Failed(why.to_owned())
}

fn find(stop: Stop, calls: &Calls, end: &End, has_model: bool) -> Ending {
    judge(&Evidence {
        stop,
        calls,
        has_model,
        unrecorded: Some("the disk is full".to_owned()),
        agent_timeout_s: 5.0,
        end,
        stderr: "panic: first\nlast words\n",
    })
}

#[test]
fn every_end_has_its_cause() {
    use Cause::*;
    let killed = Stop::Exited(ExitStatus {
        code: None,
        signal: Some(9),
    });
    let nothing = Calls::default;
    let unsaid = End::Unsaid;
    let done = End::Done;
    let network = said("Network error");
    for (name, stop, calls, end, cause) in [
        ("well", exit(0), answered(), &unsaid, Completed),
        ("well by its word", exit(1), answered(), &done, Completed),
        (
            "bad by its word",
            exit(0),
            answered(),
            &network,
            AgentExited,
        ),
        ("bad", exit(7), answered(), &unsaid, AgentExited),
        ("killed", killed, answered(), &unsaid, AgentKilled),
        (
            "its own body",
            exit(1),
            refused_by_itself(answered(), AgentRequestRefused),
            &unsaid,
            AgentRequestRefused,
        ),
        (
            "its own first body",
            exit(1),
            refused_by_itself(nothing(), AgentRequestRefused),
            &unsaid,
            AgentRequestRefused,
        ),
        (
            "coped with its own refusal",
            exit(0),
            refused_by_itself(answered(), AgentRequestRefused),
            &unsaid,
            Completed,
        ),
        (
            "hung up",
            exit(1),
            refused_by_itself(answered(), AgentHungUp),
            &unsaid,
            AgentHungUp,
        ),
        (
            "hung up at first",
            exit(1),
            refused_by_itself(nothing(), AgentHungUp),
            &unsaid,
            AgentHungUp,
        ),
        ("time", Stop::TimedOut, answered(), &unsaid, AgentTimeUsed),
        (
            "time, in a call that goes well",
            Stop::TimedOut,
            refused_by_itself(answered(), AgentHungUp),
            &unsaid,
            AgentTimeUsed,
        ),
        ("idle", Stop::Idle, answered(), &unsaid, IdleAgent),
        // goose exits with 0 after its last call failed.
        (
            "500",
            exit(0),
            failed(EndpointError),
            &unsaid,
            EndpointError,
        ),
        (
            "500, said done",
            exit(0),
            failed(EndpointError),
            &done,
            EndpointError,
        ),
        ("429", exit(1), failed(RateLimited), &network, RateLimited),
        ("401", exit(1), failed(KeyRefused), &unsaid, KeyRefused),
        ("404", exit(1), failed(NotFound), &unsaid, NotFound),
        (
            "abort",
            exit(1),
            failed(EndpointAborted),
            &unsaid,
            EndpointAborted,
        ),
        (
            "gone",
            Stop::Hopeless,
            failed(EndpointUnreachable),
            &unsaid,
            EndpointUnreachable,
        ),
        (
            "hung",
            Stop::TimedOut,
            failed(EndpointSilent),
            &unsaid,
            EndpointSilent,
        ),
        (
            "hung, then idle",
            Stop::Idle,
            failed(EndpointSilent),
            &unsaid,
            EndpointSilent,
        ),
        ("no answer", exit(1), nothing(), &unsaid, NothingAnswered),
        (
            "no answer, well",
            exit(0),
            nothing(),
            &done,
            NothingAnswered,
        ),
        (
            "no answer in time",
            Stop::TimedOut,
            nothing(),
            &unsaid,
            NothingAnswered,
        ),
        (
            "a first call in time's last moment",
            Stop::TimedOut,
            refused_by_itself(nothing(), AgentHungUp),
            &unsaid,
            NothingAnswered,
        ),
        (
            "a limit",
            exit(0),
            stopped(answered(), "calls", false),
            &unsaid,
            BudgetLimit,
        ),
        (
            "a limit, ignored",
            Stop::Exhausted,
            stopped(answered(), "usd", false),
            &unsaid,
            BudgetLimit,
        ),
        (
            "a limit, behind a failure",
            exit(0),
            stopped(failed(EndpointError), "calls", false),
            &unsaid,
            EndpointError,
        ),
        (
            "full",
            exit(0),
            stopped(answered(), "context", false),
            &unsaid,
            ContextOverflow,
        ),
        (
            "too small",
            exit(0),
            stopped(nothing(), "context", true),
            &unsaid,
            TaskDoesNotFit,
        ),
        (
            "too small, and time",
            Stop::TimedOut,
            stopped(answered(), "context", true),
            &unsaid,
            TaskDoesNotFit,
        ),
        // codex fails then, others do not.
        (
            "length, failed",
            exit(1),
            cut(),
            &said("Incomplete response returned, reason: max_output_tokens"),
            OutputLength,
        ),
        ("length, well", exit(0), cut(), &done, OutputLength),
        (
            "calls that cannot be read",
            exit(0),
            answered(),
            &said("RepeatedFormatError: Please always provide exactly one action"),
            MalformedCalls,
        ),
        (
            "cancelled",
            Stop::Cancelled,
            failed(EndpointError),
            &unsaid,
            Cancelled,
        ),
        (
            "unrecorded",
            Stop::Unrecorded,
            answered(),
            &unsaid,
            EngineFailed,
        ),
    ] {
        let ending = find(stop, &calls, end, true);
        assert_eq!(ending.cause, cause, "{name}: {:?}", ending.error);
        assert_eq!(ending.error.is_none(), cause == Completed, "{name}");
    }
}

#[test]
fn agents_without_a_model_need_no_answers() {
    for (stop, cause) in [
        (exit(0), Cause::Completed),
        (exit(3), Cause::AgentExited),
        (Stop::TimedOut, Cause::AgentTimeUsed),
    ] {
        let ending = find(stop, &Calls::default(), &End::Unsaid, false);
        assert_eq!(ending.cause, cause);
    }
}

#[test]
fn the_agents_own_words_say_why() {
    let ending = find(exit(7), &answered(), &End::Unsaid, true);
    let error = ending.error.unwrap();
    assert_eq!(error, "agent failed (exit 7): last words");
    let ending = find(exit(1), &Calls::default(), &said("no such option"), true);
    let error = ending.error.unwrap();
    assert!(
        error.ends_with("agent ended (exit 1): no such option"),
        "{error}"
    );
}

#[test]
fn a_verifier_that_fails_takes_the_place_of_what_would_be_valid() {
    let problem = || Some("no number".to_owned());
    let end = |cause| Ending::new(cause, "why");
    let ended = |ending: Ending| ending.cause.verdict().ended;
    let after = with_verifiers(end(Cause::AgentExited), problem());
    assert_eq!(ended(after), Ended::VerifierFailed);
    let after = with_verifiers(end(Cause::RateLimited), problem());
    assert_eq!(ended(after), Ended::UpstreamFailed);
    assert_eq!(
        ended(with_verifiers(end(Cause::Completed), None)),
        Ended::Completed
    );
}
