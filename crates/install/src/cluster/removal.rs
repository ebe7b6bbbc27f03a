//! What a removal has done, and what stays.

/// What was done, and what was not.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removal {
    /// What is gone.
    pub removed: Vec<String>,
    /// What stays, and why.
    pub kept: Vec<Kept>,
}

/// Something that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What it is.
    pub what: String,
    /// Why, and how to remove it, too.
    pub why: String,
}
