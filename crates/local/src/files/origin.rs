//! Where an object was written.

use std::fmt;
use std::path::PathBuf;

/// Where an object was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// File, as the user named it or found below what the user named.
    pub file: PathBuf,
    /// Line on which its document starts, from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}
