use rollcage_model::ending::Ended;

use super::*;
use rollcage_proxy::{LimitReached, Problem};

fn exit(code: i32) -> StopReason {
    StopReason::Exited(ExitStatus {
        code: Some(code),
        signal: None,
    })
}

fn answered() -> CallSummary {
    CallSummary {
        is_answered: true,
        ..CallSummary::default()
    }
}

fn failed(cause: Cause) -> CallSummary {
    CallSummary {
        failure: Some(Problem::new(cause, "it failed")),
        ..answered()
    }
}

fn refused_by_itself(calls: CallSummary, cause: Cause) -> CallSummary {
    CallSummary {
        agent_fault: Some(cause),
        ..calls
    }
}

fn stopped(calls: CallSummary, by: &str, is_at_first: bool) -> CallSummary {
    let by = by.to_owned();
    CallSummary {
        stopped: Some(LimitReached { by, is_at_first }),
        ..calls
    }
}

fn cut() -> CallSummary {
    CallSummary {
        is_cut: true,
        ..answered()
    }
}

fn failed_with(why: &str) -> AgentEnd {
    AgentEnd::Failed(why.to_owned())
}

fn find(stop: StopReason, calls: &CallSummary, end: &AgentEnd, has_model: bool) -> Ending {
    judge(&Evidence {
        stop,
        calls,
        has_model,
        unrecorded: Some("the disk is full".to_owned()),
        agent_timeout_s: 5.0,
        is_served: matches!(stop, StopReason::Served(_)),
        end,
        stderr: "panic: first\nlast words\n",
    })
}

#[track_caller]
fn check(stop: StopReason, calls: CallSummary, end: &AgentEnd, cause: Cause) {
    let ending = find(stop, &calls, end, true);
    assert_eq!(ending.cause, cause, "{:?}", ending.error);
    assert_eq!(ending.error.is_none(), cause == Cause::Completed);
}

#[test]
fn an_agent_that_had_answers_is_judged_by_its_own_end() {
    use Cause::*;
    let (unsaid, done) = (AgentEnd::Unsaid, AgentEnd::Done);
    let killed = StopReason::Exited(ExitStatus {
        code: None,
        signal: Some(9),
    });
    let by_itself = |cause| refused_by_itself(answered(), cause);
    check(exit(0), answered(), &unsaid, Completed);
    // Its word counts before its exit code.
    check(exit(1), answered(), &done, Completed);
    check(exit(0), answered(), &failed_with("gave up"), AgentExited);
    check(exit(7), answered(), &unsaid, AgentExited);
    check(killed, answered(), &unsaid, AgentKilled);
    let refused = || by_itself(AgentRequestRefused);
    check(exit(1), refused(), &unsaid, AgentRequestRefused);
    check(exit(0), refused(), &unsaid, Completed);
    check(exit(1), by_itself(AgentHungUp), &unsaid, AgentHungUp);
    check(StopReason::TimedOut, answered(), &unsaid, AgentTimeUsed);
    // In the middle of a call that went well.
    let calling = by_itself(AgentHungUp);
    check(StopReason::TimedOut, calling, &unsaid, AgentTimeUsed);
    check(StopReason::Idle, answered(), &unsaid, IdleAgent);
    check(
        StopReason::Cancelled,
        failed(EndpointError),
        &unsaid,
        Cancelled,
    );
    check(StopReason::Unrecorded, answered(), &unsaid, EngineFailed);
}

#[test]
fn a_served_agent_is_judged_by_its_last_turn() {
    use Cause::*;
    let (done, failed) = (AgentEnd::Done, failed_with("it broke"));
    let served = |code| StopReason::Served(Some(code));
    check(StopReason::Served(None), answered(), &done, Completed);
    check(StopReason::Served(None), cut(), &done, OutputLength);
    check(
        served(ErrorCode::Upstream),
        answered(),
        &failed,
        AgentExited,
    );
    check(served(ErrorCode::Crashed), answered(), &failed, AgentKilled);
    let refused = refused_by_itself(answered(), AgentRequestRefused);
    check(
        served(ErrorCode::Upstream),
        refused,
        &failed,
        AgentRequestRefused,
    );
    let unanswered = CallSummary::default();
    check(
        served(ErrorCode::Crashed),
        unanswered,
        &failed,
        NothingAnswered,
    );
    let ending = find(served(ErrorCode::Upstream), &answered(), &failed, true);
    let text = "wait_for_completion: UpstreamError: it broke";
    assert_eq!(ending.error.as_deref(), Some(text));
}

#[test]
fn the_endpoints_last_failure_counts_whatever_the_agent_makes_of_it() {
    use Cause::*;
    for cause in [
        EndpointUnreachable,
        EndpointError,
        RateLimited,
        EndpointAborted,
        AnswerBroken,
        EndpointSilent,
        EndpointRefused,
        KeyRefused,
        NotFound,
    ] {
        for stop in [
            exit(0),
            exit(1),
            StopReason::TimedOut,
            StopReason::Idle,
            StopReason::Hopeless,
        ] {
            // goose exits with 0 after its last call failed.
            for end in [
                AgentEnd::Unsaid,
                AgentEnd::Done,
                failed_with("Network error"),
            ] {
                check(stop, failed(cause), &end, cause);
            }
        }
        let limited = stopped(failed(cause), "calls", false);
        check(exit(0), limited, &AgentEnd::Unsaid, cause);
    }
}

#[test]
fn without_any_answer_the_model_had_no_part_in_it() {
    use Cause::*;
    let nothing = CallSummary::default;
    let unsaid = AgentEnd::Unsaid;
    check(exit(0), nothing(), &AgentEnd::Done, NothingAnswered);
    check(exit(1), nothing(), &unsaid, NothingAnswered);
    check(StopReason::TimedOut, nothing(), &unsaid, NothingAnswered);
    check(StopReason::Idle, nothing(), &unsaid, NothingAnswered);
    let hung_up = || refused_by_itself(nothing(), AgentHungUp);
    check(StopReason::TimedOut, hung_up(), &unsaid, NothingAnswered);
    // Also where the agent went away by itself, asked for what no model takes, or was allowed no call.
    for code in [0, 1] {
        check(exit(code), hung_up(), &unsaid, NothingAnswered);
        let refused = refused_by_itself(nothing(), AgentRequestRefused);
        check(exit(code), refused, &unsaid, NothingAnswered);
        let none_allowed = stopped(nothing(), "calls", true);
        check(exit(code), none_allowed, &unsaid, NothingAnswered);
    }
    let limited = stopped(nothing(), "usd", true);
    check(StopReason::Exhausted, limited, &unsaid, NothingAnswered);
}

#[test]
fn limits_and_cut_replies_are_the_same_for_every_agent() {
    use Cause::*;
    let unsaid = AgentEnd::Unsaid;
    let limited = |by| stopped(answered(), by, false);
    check(exit(0), limited("calls"), &unsaid, BudgetLimit);
    check(StopReason::Exhausted, limited("usd"), &unsaid, BudgetLimit);
    check(exit(0), limited("context"), &unsaid, ContextOverflow);
    let at_first = |calls| stopped(calls, "context", true);
    check(
        exit(0),
        at_first(CallSummary::default()),
        &unsaid,
        TaskDoesNotFit,
    );
    check(
        StopReason::TimedOut,
        at_first(answered()),
        &unsaid,
        TaskDoesNotFit,
    );
    // codex fails then, others do not.
    let incomplete = failed_with("Incomplete response returned, reason: max_output_tokens");
    check(exit(1), cut(), &incomplete, OutputLength);
    check(exit(0), cut(), &AgentEnd::Done, OutputLength);
    let unreadable = failed_with("RepeatedFormatError: Please always provide exactly one action");
    check(exit(0), answered(), &unreadable, MalformedCalls);
}

#[test]
fn agents_without_a_model_need_no_answers() {
    for (stop, cause) in [
        (exit(0), Cause::Completed),
        (exit(3), Cause::AgentExited),
        (StopReason::TimedOut, Cause::AgentTimeUsed),
    ] {
        let ending = find(stop, &CallSummary::default(), &AgentEnd::Unsaid, false);
        assert_eq!(ending.cause, cause);
    }
}

#[test]
fn the_agents_own_words_say_why() {
    let ending = find(exit(7), &answered(), &AgentEnd::Unsaid, true);
    let error = ending.error.unwrap();
    assert_eq!(error, "agent failed (exit 7): last words");
    let ending = find(
        exit(1),
        &CallSummary::default(),
        &failed_with("no such option"),
        true,
    );
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
    let after = with_verifier_problem(end(Cause::AgentExited), problem());
    assert_eq!(ended(after), Ended::VerifierFailed);
    let after = with_verifier_problem(end(Cause::RateLimited), problem());
    assert_eq!(ended(after), Ended::UpstreamFailed);
    assert_eq!(
        ended(with_verifier_problem(end(Cause::Completed), None)),
        Ended::Completed
    );
}
