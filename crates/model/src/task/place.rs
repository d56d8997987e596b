//! Where in the world a task takes place: its time zone and its locale.

use std::collections::BTreeMap;

use super::{Task, TaskError};

/// The longest name there is has about forty characters.
const NAME_CHARS_MAX: usize = 100;

impl Task {
    /// The variables that say where a task takes place.
    pub fn place_variables(&self) -> BTreeMap<String, String> {
        let zone = self.timezone.iter().map(|zone| ("TZ", zone));
        let locale = self.locale.iter();
        let locale = locale.flat_map(|locale| [("LANG", locale), ("LC_ALL", locale)]);
        let all = zone.chain(locale);
        all.map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}

/// It is a path below a directory of time zones, and must not lead out of it.
pub(super) fn check_timezone(name: Option<&str>) -> Result<(), TaskError> {
    let is_part = |part: &str| !part.is_empty() && is_plain(part, "_+-");
    match name {
        Some(name) if name.len() > NAME_CHARS_MAX || !name.split('/').all(is_part) => {
            Err(TaskError::Timezone(name.to_owned()))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_locale(name: Option<&str>) -> Result<(), TaskError> {
    match name {
        Some(name) if name.is_empty() || name.len() > NAME_CHARS_MAX || !is_plain(name, "_.@-") => {
            Err(TaskError::Locale(name.to_owned()))
        }
        _ => Ok(()),
    }
}

fn is_plain(text: &str, others: &str) -> bool {
    text.chars()
        .all(|letter| letter.is_ascii_alphanumeric() || others.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_places_are_names() {
        for zone in [
            "UTC",
            "Europe/Berlin",
            "America/Argentina/Buenos_Aires",
            "Etc/GMT+3",
        ] {
            assert!(check_timezone(Some(zone)).is_ok(), "{zone}");
        }
        for zone in ["", "/etc/passwd", "../x", "Europe//Berlin", ":UTC", "a b"] {
            assert!(check_timezone(Some(zone)).is_err(), "{zone}");
        }
        for locale in ["C", "de_DE.UTF-8", "ca_ES@valencia"] {
            assert!(check_locale(Some(locale)).is_ok(), "{locale}");
        }
        for locale in ["", "../de", "a b"] {
            assert!(check_locale(Some(locale)).is_err(), "{locale}");
        }
    }
}
