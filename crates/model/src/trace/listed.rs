//! Nodes in the text of a finding.

/// The first names of a list that may be long.
pub(super) fn listed(ids: &[String]) -> String {
    const NAMES_MAX: usize = 10;
    let shown = ids[..ids.len().min(NAMES_MAX)].join(", ");
    match ids.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
