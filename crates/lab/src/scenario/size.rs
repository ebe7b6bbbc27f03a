//! How much is measured.

/// How much of a scenario is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Size {
    /// All of it.
    #[default]
    Full,
    /// Enough to see whether everything works: fewer idle connections and pods.
    Quick,
}
