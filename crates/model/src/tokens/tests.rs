use super::*;

#[test]
fn what_is_held_grows_with_what_is_new() {
    let held = |n_turns: u32| {
        let mut store = TokenStore::default();
        let mut history: Vec<u32> = (0..100).collect();
        for turn in 0..n_turns {
            history.extend((0..50).map(|at| turn * 1000 + at));
            let mut prompt = history.clone();
            prompt[10] = 1_000_000 + turn;
            store.keep(prompt, &[1, 2, 3]);
        }
        store.bytes()
    };
    let (few, many) = (held(100), held(400));
    assert!(many < few * 5, "{few} bytes for 100 turns, {many} for 400");
}

#[test]
fn a_list_through_very_many_turns_can_be_read_and_dropped() {
    let mut last = Tokens::default();
    for turn in 0..100_000 {
        last = Tokens::of_pieces(vec![Piece::Old(last), Piece::New([turn].into())]);
    }
    assert!(last.iter().eq(0..100_000));
}
