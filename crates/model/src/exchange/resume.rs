//! Finds where two texts agree again after a difference. An agent that renders its prompt afresh changes a few bytes near
//! its start with every call; without this its record would hold every prompt whole.

use std::collections::HashMap;

/// How many bytes must be equal at a mark before the texts are compared there.
const BLOCK: usize = 32;
/// A shorter run is not worth its description, and most likely found at the wrong place.
const RUN_BYTES_MIN: usize = 256;
/// A text is searched only if this much of it is at stake.
pub(super) const TEXT_BYTES_MIN: usize = 1024;

/// A range of a text that also occurs in the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) at: usize,
    pub(super) from: usize,
    pub(super) bytes: usize,
}

/// Runs in order, none of them overlapping in `text`.
pub(super) fn runs(text: &[u8], old: &[u8]) -> Vec<Run> {
    let mut runs = Vec::new();
    if text.len() < TEXT_BYTES_MIN || old.len() < TEXT_BYTES_MIN {
        return runs;
    }
    let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for at in marks(old) {
        places.entry(&old[at..at + BLOCK]).or_default().push(at);
    }
    // What lies before it is in a run or new, and where the old text would go on.
    let (mut settled, mut next) = (0, 0);
    for at in marks(text) {
        if at < settled {
            continue;
        }
        let Some(found) = places.get(&text[at..at + BLOCK]) else {
            continue;
        };
        let ahead = found.partition_point(|place| *place < next);
        let Some(&place) = found.get(ahead).or(found.last()) else {
            continue;
        };
        let before = common_end(&text[settled..at], &old[..place]);
        let bytes = before + common_start(&text[at..], &old[place..]);
        if bytes < RUN_BYTES_MIN {
            continue;
        }
        let run = Run {
            at: at - before,
            from: place - before,
            bytes,
        };
        (settled, next) = (run.at + bytes, run.from + bytes);
        runs.push(run);
    }
    runs
}

/// Content-defined positions, about one in 64: they depend only on the bytes there, so a range that moved keeps its marks.
fn marks(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let last = text.len().saturating_sub(BLOCK);
    let windows = text.windows(4).take(last).enumerate();
    windows.filter_map(|(at, window)| {
        let window = u32::from_le_bytes(window.try_into().ok()?);
        (window.wrapping_mul(0x9E37_79B1) >> 26 == 0).then_some(at)
    })
}

/// How many bytes both start with.
pub(super) fn common_start(left: &[u8], right: &[u8]) -> usize {
    let alike = |from: usize, block: usize| {
        let blocks = left[from..].chunks_exact(block);
        let blocks = blocks.zip(right[from..].chunks_exact(block));
        from + blocks.take_while(|(left, right)| left == right).count() * block
    };
    // Large blocks compare at the speed of memory.
    alike(alike(alike(0, 1024), 32), 1)
}

/// How many bytes both end with.
pub(super) fn common_end(left: &[u8], right: &[u8]) -> usize {
    let alike = |from: usize, block: usize| {
        let blocks = left[..left.len() - from].rchunks_exact(block);
        let blocks = blocks.zip(right[..right.len() - from].rchunks_exact(block));
        from + blocks.take_while(|(left, right)| left == right).count() * block
    };
    alike(alike(alike(0, 1024), 32), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that do not repeat.
    fn words(from: u32, to: u32) -> String {
        (from..to)
            .map(|word| format!("word {}, ", word * 7919))
            .collect()
    }

    #[test]
    fn a_changed_start_and_a_hole_are_passed_over() {
        let old = format!("it is one o'clock {}{}", words(0, 500), words(600, 900));
        let text = format!(
            "it is twenty to two {}{}{}",
            words(0, 200),
            words(600, 900),
            words(5000, 5100)
        );
        let runs = runs(text.as_bytes(), old.as_bytes());
        let found: usize = runs.iter().map(|run| run.bytes).sum();
        for run in &runs {
            assert_eq!(
                text[run.at..run.at + run.bytes],
                old[run.from..run.from + run.bytes]
            );
        }
        let same = words(0, 200).len() + words(600, 900).len();
        assert!(found + 10 > same, "{found} of {same}");
    }

    #[test]
    fn texts_that_have_nothing_in_common_or_little_to_compare_have_no_runs() {
        assert_eq!(
            runs(words(0, 500).as_bytes(), words(1000, 1500).as_bytes()),
            []
        );
        assert_eq!(runs(b"short", b"short"), []);
        let same = "a".repeat(5000);
        let all = runs(same.as_bytes(), same.as_bytes());
        assert!(all.iter().map(|run| run.bytes).sum::<usize>() <= 5000);
    }
}
