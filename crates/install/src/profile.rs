//! Sets of values for common needs.

use std::fmt;
use std::str::FromStr;

/// A set of values, as in `charts/leno/values-PROFILE.yaml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// For a machine with little room.
    Minimal,
    /// The chart's own values.
    #[default]
    Default,
    /// The control plane survives the loss of a node.
    Ha,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Minimal, Self::Default, Self::Ha];

    /// As `--profile` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Default => "default",
            Self::Ha => "ha",
        }
    }

    /// Its differences from the chart's own values, as YAML.
    pub(crate) fn values(self) -> &'static str {
        match self {
            Self::Minimal => include_str!("../../../charts/leno/values-minimal.yaml"),
            Self::Default => "",
            Self::Ha => include_str!("../../../charts/leno/values-ha.yaml"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|profile| profile.as_str() == name);
        found.ok_or_else(|| format!("there is no profile {name:?}; choose minimal, default or ha"))
    }
}
