//! Formats sizes, times and counts for people.

/// `1.5 GiB`, `312 KiB`, `17 B`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 100.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `850 ms`, `2.41 s`, `3 min 12 s`, `2 h 5 min`.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 60.0 {
        return format!("{seconds:.2} s");
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{} h {} min", whole / 3600, whole % 3600 / 60)
    }
}

/// `24,104`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// One line, cut at `width` characters. Control characters are replaced, since a task or an agent could control the
/// terminal with them.
pub(crate) fn line(text: &str, width: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let clean = clean.trim();
    if clean.chars().count() <= width {
        return clean.to_owned();
    }
    let cut: String = clean.chars().take(width.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// Several lines without control characters.
pub(crate) fn block(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

/// A reward, or a dash.
pub(crate) fn reward(reward: Option<f64>) -> String {
    reward.map_or_else(|| "–".to_owned(), |reward| format!("{reward:.2}"))
}

/// `2026-11-15 08:54:25` in local time.
pub(crate) fn time(unix_seconds: f64) -> String {
    let stamp =
        jiff::Timestamp::from_millisecond((unix_seconds * 1000.0) as i64).unwrap_or_default();
    stamp
        .to_zoned(jiff::tz::TimeZone::system())
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_counts_are_readable() {
        assert_eq!(
            [bytes(17), bytes(1536), bytes(60_275_143), bytes(4 << 30)],
            ["17 B", "1.5 KiB", "57.5 MiB", "4.0 GiB"]
        );
        assert_eq!(
            [
                duration(0.0042),
                duration(2.414),
                duration(192.0),
                duration(7500.0)
            ],
            ["4 ms", "2.41 s", "3 min 12 s", "2 h 5 min"]
        );
        assert_eq!(
            [count(7), count(1000), count(24_104_000)],
            ["7", "1,000", "24,104,000"]
        );
        assert_eq!(
            [line("a\nb", 9), line("abcdef", 4), line("\u{1b}[31mx", 9)],
            ["a b", "abc…", "[31mx"]
        );
    }
}
