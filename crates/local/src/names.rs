//! The name of a stage, and those of the network namespaces that it makes outside its own process. Everything `leno down` has
//! to find again is found by these names.

use std::path::{Path, PathBuf};

use crate::stable_hash::fnv;

/// Name of the stage when none is given.
pub const DEFAULT_STAGE: &str = "default";

/// Longest file name Linux takes; a network namespace is a file.
const NAME_MAX: usize = 255;

/// Why a text is not a stage's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a stage: use 1 to 32 lower-case letters, digits and inner dashes")]
pub struct NotAName(String);

/// Name of a stage and what is derived from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageName {
    name: String,
    /// The directory of run directories, if it is not the environment's.
    pub(crate) base: Option<PathBuf>,
}

impl StageName {
    /// Checks a stage name: lower-case letters, digits and inner `-`, at most 32, so that it can
    /// be part of a namespace's name.
    ///
    /// # Errors
    /// [`NotAName`], naming the rule.
    pub fn new(name: &str) -> Result<Self, NotAName> {
        let sound = !name.is_empty()
            && name.len() <= 32
            && !name.starts_with('-')
            && !name.ends_with('-')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if sound { Ok(Self { name: name.to_owned(), base: None }) } else { Err(NotAName(name.to_owned())) }
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The same stage with its run directory below `base`, whatever the environment says.
    #[must_use]
    pub fn in_dir(mut self, base: &Path) -> Self {
        self.base = Some(base.to_owned());
        self
    }

    /// Namespace of the link between the nodes and of the control plane's address.
    pub fn fabric(&self) -> String {
        format!("{}fabric", self.prefix())
    }

    /// Namespace of a node.
    pub fn node(&self, node: &str) -> String {
        format!("{}{node}", self.prefix())
    }

    /// Namespace of a pod. `_` occurs in no Kubernetes name, so it can't be a node's, nor that
    /// of a pod whose namespace and name are split elsewhere.
    pub fn pod(&self, namespace: &str, pod: &str) -> String {
        let name = format!("{}{namespace}_{pod}", self.prefix());
        if name.len() <= NAME_MAX {
            return name;
        }
        let digest = format!("_{:016x}", fnv(name.as_bytes()));
        let mut cut = NAME_MAX - digest.len();
        while !name.is_char_boundary(cut) {
            cut -= 1;
        }
        format!("{}{digest}", &name[..cut])
    }

    /// Whether a network namespace of this name belongs to this stage.
    pub fn owns(&self, netns: &str) -> bool {
        let Some(rest) = netns.strip_prefix("leno-") else { return false };
        let owner = match rest.split_once('.') {
            // A dot before any `_` ends a stage's name; a dot after it is part of a pod's.
            Some((stage, _)) if !stage.contains('_') => stage,
            _ => DEFAULT_STAGE,
        };
        owner == self.name
    }

    fn prefix(&self) -> String {
        if self.name == DEFAULT_STAGE { "leno-".to_owned() } else { format!("leno-{}.", self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str) -> StageName {
        StageName::new(name).unwrap()
    }

    #[test]
    fn names_say_whose_they_are() {
        let (default, other) = (stage("default"), stage("a-b"));
        for (owner, stranger) in [(&default, &other), (&other, &default)] {
            for name in
                [owner.fabric(), owner.node("node-1"), owner.pod("a-b", "x.y"), owner.pod("n", &"p".repeat(253))]
            {
                assert!(name.len() <= 255 && name.starts_with("leno-"), "{name}");
                assert!(owner.owns(&name) && !stranger.owns(&name), "{name}");
            }
        }
        for foreign in ["cni-1", "leno", "lenox-node-1"] {
            assert!(!default.owns(foreign), "{foreign}");
        }
    }

    #[test]
    fn pods_and_nodes_cannot_clash() {
        let stage = stage("default");
        assert_ne!(stage.pod("node", "1"), stage.node("node-1"));
        assert_ne!(stage.pod("a-b", "c"), stage.pod("a", "b-c"));
        assert_ne!(stage.pod("n", &format!("{}x", "p".repeat(252))), stage.pod("n", &format!("{}y", "p".repeat(252))));
    }

    #[test]
    fn odd_stage_names_are_refused() {
        for name in ["", "-a", "a.b", "A", "a_b", "../x", &"a".repeat(33)] {
            assert!(StageName::new(name).is_err(), "{name}");
        }
    }
}
