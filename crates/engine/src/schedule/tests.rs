use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn limits(slots: usize, owner_slots: usize, queue_max: usize) -> EngineLimits {
    EngineLimits {
        slots,
        owner_slots,
        queue_max,
        ..EngineLimits::default()
    }
}

fn ids(count: usize) -> Vec<RolloutId> {
    (0..count).map(|_| RolloutId::generate()).collect()
}

fn start_all(schedule: &mut Schedule) -> Vec<RolloutId> {
    std::iter::from_fn(|| schedule.start_next()).collect()
}

#[test]
fn the_oldest_runs_first_and_an_owner_leaves_room_for_others() {
    let mut schedule = Schedule::new(limits(3, 2, 10));
    let (many, one) = (ids(3), ids(1));
    schedule.add("many", &many).unwrap();
    schedule.add("one", &one).unwrap();
    assert_eq!(start_all(&mut schedule), [many[0], many[1], one[0]]);
    schedule.release(one[0]);
    assert_eq!(schedule.start_next(), None, "its owner holds two slots");
    schedule.release(many[0]);
    assert_eq!(schedule.start_next(), Some(many[2]));
}

#[test]
fn a_submission_is_taken_on_whole_or_not_at_all() {
    let mut schedule = Schedule::new(limits(1, 1, 2));
    let full = |waiting| QueueError::Full { waiting, max: 2 };
    assert_eq!(schedule.add("a", &ids(4)), Err(full(0)));
    assert_eq!((schedule.running(), schedule.waiting()), (0, 0));
    schedule.add("a", &ids(3)).unwrap();
    assert_eq!(start_all(&mut schedule).len(), 1);
    assert_eq!(schedule.add("b", &ids(1)), Err(full(2)));
    assert_eq!(schedule.close().len(), 2);
    assert_eq!(schedule.add("b", &[]), Err(QueueError::Closed));
}

#[test]
fn no_slots_at_all_are_one() {
    let mut schedule = Schedule::new(limits(0, 0, 0));
    schedule.add("a", &ids(1)).unwrap();
    assert_eq!(start_all(&mut schedule).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Add {
        owner: u8,
        count: usize,
    },
    Start,
    /// An index into all accepted rollouts, in any state.
    Withdraw(usize),
    Release(usize),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3u8, 0..4usize).prop_map(|(owner, count)| Step::Add { owner, count }),
        6 => Just(Step::Start),
        2 => any::<usize>().prop_map(Step::Withdraw),
        4 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::Close),
    ]
}

proptest! {
    /// Compares with a model that tracks every rollout's state by itself.
    #[test]
    fn every_rollout_runs_once_in_its_turn(
        slots in 1..4usize,
        owner_slots in 1..4usize,
        queue_max in 0..6usize,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut schedule = Schedule::new(limits(slots, owner_slots, queue_max));
        let mut known: Vec<(RolloutId, u8)> = Vec::new();
        let (mut waiting, mut running) = (Vec::<RolloutId>::new(), Vec::<RolloutId>::new());
        let mut started = HashSet::new();
        let mut is_closed = false;
        let owner_of = |known: &[(RolloutId, u8)], id: RolloutId| {
            known.iter().find(|(of, _)| *of == id).map(|(_, owner)| *owner)
        };
        for step in steps {
            match step {
                Step::Add { owner, count } => {
                    let new = ids(count);
                    let added = schedule.add(&owner.to_string(), &new);
                    let has_room = waiting.len() + count <= queue_max + slots - running.len();
                    prop_assert_eq!(added.is_ok(), has_room && !is_closed);
                    if added.is_ok() {
                        known.extend(new.iter().map(|id| (*id, owner)));
                        waiting.extend(new);
                    }
                }
                Step::Start => {
                    let may_run = |id: &RolloutId| {
                        let owner = owner_of(&known, *id);
                        let held = running.iter().filter(|held| owner_of(&known, **held) == owner);
                        running.len() < slots && held.count() < owner_slots
                    };
                    let expected = waiting.iter().position(may_run);
                    let expected = expected.map(|index| waiting.remove(index));
                    let next = schedule.start_next();
                    prop_assert_eq!(next, expected);
                    if let Some(id) = next {
                        prop_assert!(started.insert(id), "started twice");
                        running.push(id);
                    }
                }
                Step::Withdraw(_) | Step::Release(_) if known.is_empty() => {}
                Step::Withdraw(index) => {
                    let id = known[index % known.len()].0;
                    prop_assert_eq!(schedule.withdraw(id), waiting.contains(&id));
                    waiting.retain(|waits| *waits != id);
                }
                Step::Release(index) => {
                    let id = known[index % known.len()].0;
                    schedule.release(id);
                    running.retain(|held| *held != id);
                }
                Step::Close => {
                    is_closed = true;
                    prop_assert_eq!(&schedule.close(), &waiting);
                }
            }
            prop_assert_eq!((schedule.running(), schedule.waiting()), (running.len(), waiting.len()));
            prop_assert!(running.len() <= slots);
        }
    }
}
