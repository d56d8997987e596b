//! npm's version ranges: `^1.2`, `~1.2.3`, `>=1 <3`, `1.x || 2.x`, `1.2 - 2`.

use std::cmp::Ordering;

/// A version as npm orders them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    numbers: [u64; 3],
    /// Empty for a release.
    pre: Vec<String>,
}

impl Version {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches(['v', '=']);
        let text = text.split('+').next()?;
        let (core, pre) = text.split_once('-').unwrap_or((text, ""));
        let numbers: Vec<u64> = core
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        let pre = pre.split('.').filter(|part| !part.is_empty());
        Some(Version {
            numbers: numbers.try_into().ok()?,
            pre: pre.map(str::to_owned).collect(),
        })
    }

    fn release(numbers: [u64; 3]) -> Self {
        let pre = Vec::new();
        Version { numbers, pre }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_part = |(a, b): (&String, &String)| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        let by_pre = || match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.pre.iter().zip(&other.pre);
                let differs = pairs.map(by_part).find(|order| order.is_ne());
                differs.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then_with(by_pre)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One bound of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    AtLeast(Version),
    Above(Version),
    AtMost(Version),
    Below(Version),
    Exactly(Version),
}

impl Bound {
    fn version(&self) -> &Version {
        match self {
            Bound::AtLeast(version)
            | Bound::Above(version)
            | Bound::AtMost(version)
            | Bound::Below(version)
            | Bound::Exactly(version) => version,
        }
    }

    fn holds(&self, version: &Version) -> bool {
        match self {
            Bound::AtLeast(bound) => version >= bound,
            Bound::Above(bound) => version > bound,
            Bound::AtMost(bound) => version <= bound,
            Bound::Below(bound) => version < bound,
            Bound::Exactly(bound) => version == bound,
        }
    }
}

/// Sets of bounds, one of which must hold whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    sets: Vec<Vec<Bound>>,
}

impl Range {
    /// `None` for what is no range: a tag, a file, an address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let sets = text.split("||").map(|set| bounds(set.trim()));
        let sets = sets.collect::<Option<_>>()?;
        Some(Range { sets })
    }

    pub(super) fn holds(&self, version: &Version) -> bool {
        self.sets.iter().any(|set| {
            // A pre-release only counts where a bound names one of the same version.
            let is_meant = version.pre.is_empty()
                || set.iter().any(|bound| {
                    let named = bound.version();
                    !named.pre.is_empty() && named.numbers == version.numbers
                });
            is_meant && set.iter().all(|bound| bound.holds(version))
        })
    }
}

fn bounds(set: &str) -> Option<Vec<Bound>> {
    if let Some((low, high)) = set.split_once(" - ") {
        let low = Partial::parse(low)?;
        let high = Partial::parse(high)?;
        let top = match high.next() {
            None => Bound::AtMost(high.lowest()),
            Some(next) => Bound::Below(next),
        };
        return Some(vec![Bound::AtLeast(low.lowest()), top]);
    }
    // An operator may stand apart from its version.
    let mut words = Vec::new();
    let mut operator = String::new();
    for word in set.split_whitespace() {
        operator.push_str(word);
        if word
            .chars()
            .any(|letter| letter.is_ascii_alphanumeric() || letter == '*')
        {
            words.push(std::mem::take(&mut operator));
        }
    }
    let mut found = Vec::new();
    for word in words {
        found.extend(comparator(&word)?);
    }
    Some(found)
}

fn comparator(word: &str) -> Option<Vec<Bound>> {
    let at = word
        .find(|letter: char| !"^~<>=v".contains(letter))
        .unwrap_or(word.len());
    let (operator, version) = word.split_at(at);
    let partial = Partial::parse(version)?;
    let (lowest, next) = (partial.lowest(), partial.next());
    Some(match operator.trim_end_matches('v') {
        "" | "=" => match next {
            None => vec![Bound::Exactly(lowest)],
            Some(_) if partial.numbers.is_empty() => Vec::new(),
            Some(next) => vec![Bound::AtLeast(lowest), Bound::Below(next)],
        },
        "^" if partial.numbers.is_empty() => Vec::new(),
        "^" => vec![
            Bound::AtLeast(lowest),
            Bound::Below(partial.next_breaking()),
        ],
        "~" | "~>" if partial.numbers.is_empty() => Vec::new(),
        "~" | "~>" => {
            let kept = partial.numbers.len().min(2);
            vec![
                Bound::AtLeast(lowest),
                Bound::Below(partial.bumped(kept - 1)),
            ]
        }
        ">=" => vec![Bound::AtLeast(lowest)],
        ">" => vec![next.map_or(Bound::Above(lowest), Bound::AtLeast)],
        "<" => vec![Bound::Below(lowest)],
        "<=" => vec![next.map_or(Bound::AtMost(lowest), Bound::Below)],
        _ => return None,
    })
}

/// A version of which only the first numbers may be given.
struct Partial {
    numbers: Vec<u64>,
    pre: Vec<String>,
}

impl Partial {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        if let Some(version) = Version::parse(text) {
            return Some(Partial {
                numbers: version.numbers.to_vec(),
                pre: version.pre,
            });
        }
        let mut numbers = Vec::new();
        for part in text.split('.').filter(|part| !part.is_empty()) {
            if matches!(part, "x" | "X" | "*") {
                break;
            }
            numbers.push(part.parse().ok()?);
        }
        let pre = Vec::new();
        (numbers.len() <= 2).then_some(Partial { numbers, pre })
    }

    fn lowest(&self) -> Version {
        let mut numbers = [0; 3];
        numbers[..self.numbers.len()].copy_from_slice(&self.numbers);
        Version {
            numbers,
            pre: self.pre.clone(),
        }
    }

    /// The first version behind all that are meant; `None` when one exact version is.
    fn next(&self) -> Option<Version> {
        match self.numbers.len() {
            0 => Some(Version::release([u64::MAX; 3])),
            3 => None,
            given => Some(self.bumped(given - 1)),
        }
    }

    /// The first version that `^` keeps out: the leftmost number that is not 0 may not change.
    fn next_breaking(&self) -> Version {
        let leftmost = self.numbers.iter().position(|number| *number != 0);
        self.bumped(leftmost.unwrap_or(self.numbers.len() - 1))
    }

    fn bumped(&self, place: usize) -> Version {
        let mut numbers = [0; 3];
        numbers[..=place].copy_from_slice(&self.numbers[..=place]);
        numbers[place] += 1;
        Version::release(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(range: &str, inside: &[&str], outside: &[&str]) {
        let parsed = Range::parse(range).unwrap();
        let holds = |version: &&str| parsed.holds(&Version::parse(version).unwrap());
        for version in inside {
            assert!(holds(version), "{range} takes {version}");
        }
        for version in outside {
            assert!(!holds(version), "{range} leaves out {version}");
        }
    }

    #[test]
    fn ranges_mean_what_npm_says() {
        check(
            "^1.2.3",
            &["1.2.3", "1.9.0"],
            &["1.2.2", "2.0.0", "1.3.0-rc.1"],
        );
        check("^0.2.3", &["0.2.9"], &["0.3.0"]);
        check("^0.0.3", &["0.0.3"], &["0.0.4"]);
        check("^0.x", &["0.9.9"], &["1.0.0"]);
        check("~1.2", &["1.2.9"], &["1.3.0"]);
        check("~1", &["1.9.0"], &["2.0.0"]);
        check(
            "1.x || >=2.5.0 <3 || 5.0.0 - 7.2",
            &["1.0.0", "2.6.0", "7.2.9"],
            &["2.4.0", "3.0.0", "7.3.0"],
        );
        check(">= 1.2 < 2", &["1.2.0"], &["2.0.0"]);
        check(">1.2", &["1.3.0"], &["1.2.9"]);
        check("<=1.2", &["1.2.9"], &["1.3.0"]);
        check("*", &["0.0.1", "9.9.9"], &["1.0.0-beta"]);
        check("", &["1.0.0"], &[]);
        check(
            "1.2.0-beta.10",
            &["1.2.0-beta.10"],
            &["1.2.0", "1.2.0-beta.2"],
        );
        check(
            "^1.2.0-beta.2",
            &["1.2.0-beta.10", "1.3.0"],
            &["1.2.0-beta.1", "1.3.0-beta.1"],
        );
        assert_eq!(Range::parse("latest"), None);
        assert_eq!(Range::parse("git+https://x/y.git"), None);
    }

    #[test]
    fn versions_are_ordered_as_npm_orders_them() {
        let sorted = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0",
            "1.10.0",
        ];
        let versions: Vec<_> = sorted
            .iter()
            .map(|text| Version::parse(text).unwrap())
            .collect();
        assert!(versions.is_sorted());
    }
}
