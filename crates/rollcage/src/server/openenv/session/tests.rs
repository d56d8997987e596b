use super::*;

fn sessions(max: usize) -> Arc<Sessions> {
    Arc::new(Sessions::new(max, Arc::default()))
}

fn rollout(reward: f64) -> FinishedRollout {
    FinishedRollout {
        task_id: "t".to_owned(),
        sandbox_id: "s".to_owned(),
        reward: Some(reward),
        is_counted: true,
    }
}

#[test]
fn a_session_outlives_a_socket_that_attached_with_its_id() {
    let sessions = sessions(1);
    let id = sessions.create("me".into()).unwrap().id.clone();
    let held = sessions.attach(&id, "me").unwrap();
    held.session().reset(Some("e".to_owned()));
    assert_eq!(
        sessions.attach(&id, "me").err(),
        Some(SessionError::Busy(id.clone()))
    );
    drop(held);
    let again = sessions.attach(&id, "me").unwrap();
    assert_eq!(again.session().state().episode_id, "e");
}

#[test]
fn a_session_made_for_a_socket_ends_with_it() {
    let sessions = sessions(1);
    let held = sessions.open("me".into()).unwrap();
    let session = Arc::clone(held.session());
    let full = SessionError::Full { active: 1, max: 1 };
    assert_eq!(sessions.create("me".into()).err(), Some(full));
    drop(held);
    assert!(session.ended.is_cancelled());
    assert!(sessions.create("me".into()).is_ok());
}

#[test]
fn closing_waits_for_the_socket() {
    let sessions = sessions(1);
    let id = sessions.create("me".into()).unwrap().id.clone();
    let held = sessions.attach(&id, "me").unwrap();
    assert_eq!(sessions.close(&id, "me"), Ok(CloseOutcome::Later));
    assert!(!held.session().ended.is_cancelled());
    drop(held);
    assert_eq!(
        sessions.close(&id, "me"),
        Err(SessionError::Unknown(id.clone()))
    );
}

#[test]
fn nobody_sees_the_sessions_of_others() {
    let sessions = sessions(1);
    let id = sessions.create("me".into()).unwrap().id.clone();
    let unknown = SessionError::Unknown(id.clone());
    assert_eq!(
        sessions.find(&id, "you").err(),
        Some(SessionError::Unknown(id.clone()))
    );
    assert_eq!(
        sessions.attach(&id, "you").err(),
        Some(SessionError::Unknown(id.clone()))
    );
    assert_eq!(sessions.close(&id, "you"), Err(unknown));
    assert!(sessions.find(&id, "me").is_ok());
}

#[test]
fn only_idle_sessions_are_reaped() {
    let sessions = sessions(4);
    let idle = sessions.create("me".into()).unwrap();
    let busy = sessions.create("me".into()).unwrap();
    let attached = sessions.create("me".into()).unwrap();
    let _owned = sessions.open("me".into()).unwrap();
    let _held = sessions.attach(&attached.id, "me").unwrap();
    let running = busy.begin();
    let later = Instant::now() + Duration::from_secs(100);
    assert_eq!(sessions.reap(later, Duration::from_secs(200)), 0);
    assert_eq!(sessions.reap(later, Duration::from_secs(50)), 1);
    assert!(idle.ended.is_cancelled());
    drop(running);
    assert_eq!(sessions.reap(later, Duration::from_secs(50)), 1);
    assert!(busy.ended.is_cancelled() && !attached.ended.is_cancelled());
}

#[test]
fn a_rollout_of_an_earlier_episode_does_not_show_in_the_next() {
    let session = Session::temporary("me".into());
    let running = session.begin();
    session.reset(None);
    running.finished(rollout(1.0));
    assert_eq!(session.state().last_reward, None);
    session.begin().finished(rollout(f64::NAN));
    assert_eq!(session.state().rollouts_completed, 1);
    assert_eq!(session.state().last_reward, None);
    session.begin().finished(rollout(0.5));
    assert_eq!(session.state().last_reward, Some(0.5));
}

#[test]
fn a_rollout_without_a_name_leaves_none() {
    let session = Session::temporary("me".into());
    let nameless = FinishedRollout {
        task_id: String::new(),
        sandbox_id: String::new(),
        ..rollout(0.5)
    };
    for (finished, expected) in [(rollout(1.0), Some("t")), (nameless, None)] {
        session.begin().finished(finished);
        assert_eq!(session.state().last_task_id.as_deref(), expected);
    }
    assert_eq!(session.state().last_sandbox_id, None);
    assert_eq!(session.state().rollouts_completed, 2);
}
