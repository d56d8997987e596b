//! Our own memory and descriptors over the turns, and whether they grow. Pure.

use serde::Serialize;

/// How much more than after the first two fifths of all turns there may be at any later time, in percent and beyond that.
/// Until then caches fill: of twenty agents each keeps its last twenty turns in memory, which are 400 of 1,000.
const PERCENT_MAX: u64 = 20;
const MEMORY_MORE: u64 = 8 << 20;
const DESCRIPTORS_MORE: u64 = 16;

/// Our own process after so many turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Sample {
    pub(super) turns: usize,
    pub(super) resident_bytes: u64,
    pub(super) descriptors: u64,
}

/// From the first two fifths of all turns on.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Growth {
    pub(super) per_100_turns: f64,
    pub(super) largest: u64,
    pub(super) limit: u64,
}

impl Growth {
    pub(super) fn of_memory(samples: &[Sample]) -> Option<Growth> {
        growth(samples, |sample| sample.resident_bytes, MEMORY_MORE)
    }

    pub(super) fn of_descriptors(samples: &[Sample]) -> Option<Growth> {
        growth(samples, |sample| sample.descriptors, DESCRIPTORS_MORE)
    }

    pub(super) fn is_flat(&self) -> bool {
        self.largest <= self.limit
    }
}

/// The first sample, the one after two fifths, the one after seven tenths, and the last.
pub(super) fn chosen(samples: &[Sample]) -> Vec<Sample> {
    let Some(last) = samples.last() else {
        return Vec::new();
    };
    let after = |tenths: usize| {
        let mut samples = samples.iter();
        samples.find(|sample| sample.turns >= last.turns * tenths / 10)
    };
    let mut chosen: Vec<Sample> = samples.first().into_iter().copied().collect();
    chosen.extend(after(4));
    chosen.extend(after(7));
    chosen.push(*last);
    chosen.dedup();
    chosen
}

fn growth(samples: &[Sample], value: fn(&Sample) -> u64, more: u64) -> Option<Growth> {
    let last = samples.last()?;
    let warm = samples
        .iter()
        .position(|sample| sample.turns >= last.turns * 2 / 5)?;
    let (first, later) = (&samples[warm], &samples[warm..]);
    let turns = last.turns.saturating_sub(first.turns).max(1);
    let change = value(last) as f64 - value(first) as f64;
    Some(Growth {
        per_100_turns: change * 100.0 / turns as f64,
        largest: later.iter().map(value).max()?,
        limit: value(first) + value(first) * PERCENT_MAX / 100 + more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(turns: usize, mib: u64) -> Sample {
        Sample {
            turns,
            resident_bytes: mib << 20,
            descriptors: 100 + mib,
        }
    }

    #[test]
    fn growth_counts_from_two_fifths_on() {
        let samples = [(0, 10), (10, 60), (40, 100), (70, 110), (100, 103)];
        let mut samples = samples.map(|(turns, mib)| sample(turns, mib));
        let growth = Growth::of_memory(&samples).unwrap();
        assert_eq!(growth.per_100_turns, 5.0 * f64::from(1 << 20));
        assert_eq!((growth.largest, growth.limit), (110 << 20, 128 << 20));
        assert!(growth.is_flat());
        assert!(Growth::of_descriptors(&samples).unwrap().is_flat());
        let turns: Vec<_> = chosen(&samples).iter().map(|sample| sample.turns).collect();
        assert_eq!(turns, [0, 40, 70, 100]);
        samples[3].resident_bytes = 129 << 20;
        samples[4].descriptors = 257;
        assert!(!Growth::of_memory(&samples).unwrap().is_flat());
        assert!(!Growth::of_descriptors(&samples).unwrap().is_flat());
        assert!(Growth::of_memory(&[]).is_none() && chosen(&[]).is_empty());
    }
}
