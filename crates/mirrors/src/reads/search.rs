//! Looks for one path in a page of an index, piece by piece: such pages can be large, and are kept by nobody.

use url::Url;

use super::{segments, without_metadata};

/// A tag, or all of cargo's `config.json`, of more bytes than this is passed over.
const HELD_BYTES_MAX: usize = 64 << 10;
/// What stands in cargo's template for a part of the path; none of them holds a slash but the prefixes.
const MARKERS: [&str; 5] = [
    "{crate}",
    "{version}",
    "{prefix}",
    "{lowerprefix}",
    "{sha256-checksum}",
];

/// A search for one path in one page.
#[derive(Debug)]
pub struct Search {
    page: Url,
    wanted: Vec<String>,
    is_config: bool,
    held: Vec<u8>,
}

impl Search {
    pub(super) fn of_links(page: &str, path: &str) -> Option<Self> {
        Search::new(page, without_metadata(path), false)
    }

    pub(super) fn of_config(page: &str, path: &str) -> Option<Self> {
        Search::new(page, path, true)
    }

    fn new(page: &str, path: &str, is_config: bool) -> Option<Self> {
        Some(Search {
            page: Url::parse(page).ok()?,
            wanted: segments(path.strip_prefix('/')?)?,
            is_config,
            held: Vec::new(),
        })
    }

    /// Reads the next piece of the page. Whether the path was found.
    pub fn push(&mut self, piece: &[u8]) -> bool {
        self.held.extend_from_slice(piece);
        let whole = match self.is_config {
            true => None,
            false => self.held.iter().rposition(|byte| *byte == b'>'),
        };
        let is_found = match (self.is_config, whole) {
            (true, _) => return self.is_told(),
            (false, Some(end)) => {
                let rest = self.held.split_off(end + 1);
                let tags = std::mem::replace(&mut self.held, rest);
                links(&String::from_utf8_lossy(&tags)).any(|link| self.is_wanted(link))
            }
            (false, None) => false,
        };
        if self.held.len() > HELD_BYTES_MAX {
            self.held.clear();
        }
        is_found
    }

    fn is_wanted(&self, link: &str) -> bool {
        let Ok(url) = self.page.join(link) else {
            return false;
        };
        let path = url.path().strip_suffix('/').unwrap_or(url.path());
        self.is_here(&url)
            && path.strip_prefix('/').and_then(segments).as_ref() == Some(&self.wanted)
    }

    /// Passwords are for one host.
    fn is_here(&self, url: &Url) -> bool {
        url.origin() == self.page.origin() && url.query().is_none()
    }

    /// Whether cargo's settings say that crates are at paths like the wanted one.
    fn is_told(&mut self) -> bool {
        if self.held.len() > HELD_BYTES_MAX {
            return false;
        }
        let config = serde_json::from_slice::<serde_json::Value>(&self.held).ok();
        let place = config
            .as_ref()
            .and_then(|config| config.get("dl")?.as_str());
        let Some(place) = place else {
            return false;
        };
        let template = match MARKERS.iter().any(|marker| place.contains(marker)) {
            true => place.to_owned(),
            false => format!("{place}/{{crate}}/{{version}}/download"),
        };
        // Braces would be encoded by a URL.
        let Some(at) = template.find('{') else {
            return false;
        };
        let folder = template[..at].rfind('/').map_or(0, |at| at + 1);
        let Ok(url) = Url::parse(&template[..folder]) else {
            return false;
        };
        let fixed = url.path().trim_matches('/');
        let behind = template[folder..].split('/').map(str::to_owned);
        let expected: Option<Vec<String>> = match fixed {
            "" => Some(Vec::new()),
            fixed => segments(fixed),
        };
        let Some(mut expected) = expected else {
            return false;
        };
        expected.extend(behind);
        self.is_here(&url) && fits(&expected, &self.wanted)
    }
}

/// The values of `href` in tags.
fn links(tags: &str) -> impl Iterator<Item = &str> {
    let after = tags.split("href=").skip(1);
    after.filter_map(|text| {
        let quote = text.chars().next().filter(|it| matches!(it, '"' | '\''))?;
        text[1..].split(quote).next()
    })
}

/// Whether the parts of a path are those of a template. A prefix may be one part or two.
fn fits(template: &[String], path: &[String]) -> bool {
    match (template.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((part, rest)), Some((name, names))) => {
            let is_prefix = matches!(part.as_str(), "{prefix}" | "{lowerprefix}");
            (fits_part(part, name) && fits(rest, names))
                || (is_prefix && !names.is_empty() && fits(rest, &names[1..]))
        }
        _ => false,
    }
}

/// A marker stands for one letter or more. Names are short and of ASCII (`segments`).
fn fits_part(part: &str, name: &str) -> bool {
    let marker = MARKERS
        .iter()
        .filter_map(|marker| Some((part.find(marker)?, marker)))
        .min();
    let Some((at, marker)) = marker else {
        return part == name;
    };
    let behind = &part[at + marker.len()..];
    let rest = name.strip_prefix(&part[..at]).unwrap_or_default();
    (1..=rest.len()).any(|end| fits_part(behind, &rest[end..]))
}
