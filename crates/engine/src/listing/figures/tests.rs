use rollcage_model::id::RolloutId;
use rollcage_model::task::Task;

use super::*;

/// A rollout of a task with a reward; `None` for one that says nothing.
fn rollout(task: &str, agent: &str, reward: Option<f64>) -> Arc<Summary> {
    let task = Task {
        id: task.to_owned(),
        ..Task::default()
    };
    let mut result = crate::result::begin_abandoned(RolloutId::generate(), task);
    result.agent.name = agent.to_owned();
    result.reward = reward;
    result.reward_valid = reward.is_some();
    result.wall_s = 2.0;
    result.usage.calls = 3;
    Arc::new(Summary::of(&result, None))
}

#[track_caller]
fn check(tries: usize, passes: usize, k: usize, expect: f64) {
    let got = chance(tries, passes, k);
    assert!((got - expect).abs() < 1e-12, "{got}");
}

#[test]
fn the_chance_of_a_pass_is_unbiased() {
    // 1 - C(n - c, k) / C(n, k).
    check(4, 1, 1, 0.25);
    check(4, 1, 2, 0.5);
    check(5, 2, 2, 1.0 - 3.0 / 10.0);
    check(10, 3, 4, 1.0 - 35.0 / 210.0);
    check(8, 0, 8, 0.0);
    check(8, 1, 8, 1.0);
    check(4, 3, 2, 1.0);
    // C(1000, 500) is no number of ours.
    check(1000, 1, 500, 0.5);
}

#[test]
fn pass_at_k_is_a_mean_over_the_tasks_with_enough_tries() {
    let mut all = Vec::new();
    all.extend([1.0, 0.0, 0.0, 0.5].map(|reward| rollout("a", "x", Some(reward))));
    all.extend([1.0, 1.0].map(|reward| rollout("b", "x", Some(reward))));
    all.push(rollout("b", "x", None));
    let figures = figures(&all, &[], 0, 10).all;
    let at = |k, value, tasks| PassAtK { k, value, tasks };
    assert_eq!(
        figures.pass_at_k,
        [at(1, 0.625, 2), at(2, 0.75, 2), at(4, 1.0, 1)]
    );
    let counts = (figures.rollouts, figures.ended, figures.valid);
    assert_eq!(counts, (7, 7, 6));
    let verdicts = (figures.passed, figures.partial, figures.failed);
    assert_eq!(verdicts, (3, 1, 2));
    assert_eq!((figures.tasks, figures.calls), (2, 21));
    let mean = figures.mean_reward.unwrap();
    assert!((mean - 3.5 / 6.0).abs() < 1e-12, "{mean}");
    assert_eq!(figures.rewards, [2, 0, 0, 0, 0, 1, 0, 0, 0, 3]);
    assert_eq!(figures.mean_wall_s, Some(2.0));
}

#[test]
fn tasks_without_a_name_are_told_apart_by_their_groups() {
    let in_group = |task: &str, group: &str, reward: f64| {
        let mut summary = rollout(task, "x", Some(reward));
        Arc::make_mut(&mut summary).row.group = group.to_owned();
        summary
    };
    let mut all = Vec::new();
    all.extend([1.0, 0.0].map(|reward| in_group("", "g", reward)));
    all.extend([0.0, 0.0].map(|reward| in_group("", "h", reward)));
    // Each is a task of its own, with one try.
    all.extend([1.0, 1.0, 0.0].map(|reward| in_group("", "", reward)));
    // A name is not a group's.
    all.push(in_group("g", "h", 1.0));
    let page = figures(&all, &[Dimension::Task], 0, 10);
    let at = |k, value, tasks| PassAtK { k, value, tasks };
    assert_eq!(page.all.tasks, 6);
    assert_eq!(page.all.pass_at_k, [at(1, 3.5 / 6.0, 6), at(2, 0.5, 2)]);
    let nameless = page.groups.iter().find(|it| it.key["task"].is_empty());
    let nameless = nameless.unwrap();
    assert_eq!((nameless.rollouts, nameless.tasks), (7, 5));
    assert_eq!(nameless.pass_at_k, [at(1, 0.5, 5), at(2, 0.5, 2)]);
}

#[test]
fn rollouts_are_put_together_by_what_they_have_in_common() {
    let all: Vec<_> = ["x", "y", "x"]
        .into_iter()
        .enumerate()
        .map(|(number, agent)| {
            let mut summary = rollout("a", agent, Some(number as f64));
            Arc::make_mut(&mut summary).row.started_at = number as f64;
            summary
        })
        .collect();
    let page = figures(&all, &[Dimension::Task, Dimension::Agent], 0, 1);
    assert_eq!((page.total, page.start, page.groups.len()), (2, 0, 1));
    let newest = &page.groups[0];
    let key = |agent: &str| {
        let pairs = [("task", "a"), ("agent", agent)];
        BTreeMap::from(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
    };
    assert_eq!((&newest.key, newest.rollouts), (&key("x"), 2));
    // What is above 1 counts as 1 in the distribution, and as itself in the mean.
    assert_eq!((newest.rewards[9], newest.mean_reward), (1, Some(1.0)));
    let next = figures(&all, &[Dimension::Task, Dimension::Agent], 1, 1);
    assert_eq!((next.start, &next.groups[0].key), (1, &key("y")));
}

#[test]
fn nothing_has_no_figures() {
    let page = figures(&[], &[Dimension::Task], 0, 10);
    assert_eq!((page.total, page.all.mean_reward), (0, None));
    assert_eq!(
        (page.all.pass_at_k, page.all.rewards),
        (vec![], vec![0; 10])
    );
}
