//! The graph against the plainest way to make one: every prompt with every other, id by id.

use proptest::prelude::*;

use super::{exchange_of, show};
use crate::graph::{Graph, Links};
use crate::tokens::{TokenStore, Tokens};
use crate::turn::Turn;
use serde_json::json;

/// What a turn of the tests has: the number of its exchange, its ids, and whether it had tools.
#[derive(Clone, Debug)]
struct Plain {
    exchange: u64,
    prompt: Vec<u32>,
    sampled: Vec<u32>,
}

/// The parent by looking at all turns.
fn parent_of(turns: &[Plain], child: usize) -> Option<usize> {
    let prompt = &turns[child].prompt;
    let whole = |turn: &Plain| [turn.prompt.as_slice(), &turn.sampled].concat();
    let is_prefix = |at: &usize| {
        let turn = &turns[*at];
        *at != child && !turn.sampled.is_empty() && prompt.starts_with(&whole(turn))
    };
    let longest = (0..turns.len())
        .filter(is_prefix)
        .map(|at| whole(&turns[at]).len())
        .max()?;
    let equals = || {
        let fitting = (0..turns.len()).filter(is_prefix);
        fitting.filter(|at| whole(&turns[*at]).len() == longest)
    };
    let number = |at: &usize| turns[*at].exchange;
    let before = equals().filter(|at| number(at) < turns[child].exchange);
    before
        .max_by_key(number)
        .or_else(|| equals().min_by_key(number))
}

/// Lists that grow from each other: by going on, by asking again, by changing an id in the middle or the sampled ones.
fn rollout() -> impl Strategy<Value = Vec<Plain>> {
    let seed = (
        any::<prop::sample::Index>(),
        0..5_u8,
        any::<prop::sample::Index>(),
        0..40_usize,
        0..4_usize,
    );
    prop::collection::vec(seed, 1..24).prop_map(|seeds| {
        let mut turns: Vec<Plain> = Vec::new();
        for (exchange, (base, kind, place, more, n_sampled)) in (1..).zip(seeds) {
            let mut prompt = match turns.get(base.index(turns.len().max(1))) {
                None => (0..30).collect(),
                Some(turn) if kind == 4 => turn.prompt.clone(),
                Some(turn) => [turn.prompt.as_slice(), &turn.sampled].concat(),
            };
            let at = place.index(prompt.len());
            match kind {
                1 => prompt[at] ^= 1,
                2 => prompt.insert(at, 7),
                3 => drop(prompt.remove(at)),
                _ => {}
            }
            if kind != 4 {
                prompt.extend((0..more as u32).map(|id| id % 3));
            }
            let sampled = (0..n_sampled as u32).map(|id| id % 2).collect();
            prompt.push(9);
            turns.push(Plain {
                exchange,
                prompt,
                sampled,
            });
        }
        turns
    })
}

/// A turn whose messages say nothing, so that its ids alone decide.
fn turn_of(plain: &Plain, store: &mut TokenStore) -> Turn {
    let body = json!({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]});
    let mut turn = Turn::new(&exchange_of(plain.exchange, &json!({}), &body));
    turn.prompt_token_ids = Some(store.keep(plain.prompt.clone(), &plain.sampled));
    turn.completion_token_ids = Some(plain.sampled.clone());
    turn
}

proptest! {
    #[test]
    fn parents_are_those_of_the_plain_way_in_any_order(
        plain in rollout(),
        keys in prop::collection::vec(any::<u32>(), 24),
    ) {
        let mut shuffled: Vec<(u32, Plain)> = keys.into_iter().zip(plain.clone()).collect();
        shuffled.sort_by_key(|(key, _)| *key);
        let shuffled: Vec<Plain> = shuffled.into_iter().map(|(_, plain)| plain).collect();
        for order in [&plain, &shuffled] {
            let (mut store, mut links) = (TokenStore::default(), Links::default());
            let mut turns = Vec::new();
            for plain in order {
                let turn = turn_of(plain, &mut store);
                links.push(&turn);
                turns.push(turn);
                // What is asked for on the way must not change what is found later.
                links.graph(&turns);
            }
            let graph = links.graph(&turns);
            for node in &graph.nodes {
                let parent = node.parent.map(|parent| graph.nodes[parent].turn);
                prop_assert_eq!(parent, parent_of(order, node.turn));
                let prompt = turns[node.turn].prompt_token_ids.as_ref().unwrap();
                prop_assert_eq!(prompt.to_vec(), order[node.turn].prompt.clone());
            }
            prop_assert_eq!(show(&graph), show(&Graph::new(&turns)));
        }
    }

    #[test]
    fn a_kept_list_reads_back_and_so_do_its_parts(plain in rollout(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()) {
        let mut store = TokenStore::default();
        let mut kept: Vec<(Tokens, Vec<u32>)> = Vec::new();
        for turn in &plain {
            kept.push((store.keep(turn.prompt.clone(), &turn.sampled), turn.prompt.clone()));
        }
        for (tokens, ids) in &kept {
            prop_assert_eq!(&tokens.to_vec(), ids);
            let (from, to) = (from.index(ids.len()), to.index(ids.len()) + 1);
            prop_assert_eq!(tokens.slice(from, to).to_vec(), ids[from.min(to)..to].to_vec());
            for (other, other_ids) in &kept {
                let common = ids.iter().zip(other_ids).take_while(|(left, right)| left == right).count();
                prop_assert_eq!(tokens.common_start(other), common);
            }
        }
    }
}
