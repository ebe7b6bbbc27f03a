//! The end of a message about a name that is not known.

/// `; did you mean NAME?`, or nothing if no name is near.
pub(crate) fn hint(meant: Option<&str>) -> String {
    meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
}
