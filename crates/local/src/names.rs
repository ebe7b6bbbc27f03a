//! Names of what a stage makes outside its own process: network namespaces and the run
//! directory. Everything `leno down` has to find again is found by these names.

use std::path::{Path, PathBuf};

use crate::Error;

/// Name of the stage when none is given.
pub const DEFAULT_STAGE: &str = "default";

/// Longest file name Linux takes; a network namespace is a file.
const NAME_MAX: usize = 255;

/// Name of a stage and what is derived from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageName {
    name: String,
    /// Where run directories are, if not where the environment says.
    base: Option<PathBuf>,
}

impl StageName {
    /// Checks a stage name: lower-case letters, digits and inner `-`, at most 32, so that it can
    /// be part of a namespace's name.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the rule.
    pub fn new(name: &str) -> Result<Self, Error> {
        let sound = !name.is_empty()
            && name.len() <= 32
            && !name.starts_with('-')
            && !name.ends_with('-')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if sound {
            Ok(Self { name: name.to_owned(), base: None })
        } else {
            Err(Error::Usage(format!(
                "{name:?} cannot name a stage: use 1 to 32 lower-case letters, digits and inner dashes"
            )))
        }
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

    /// Directory with this stage's sockets, logs and state: `LENO_RUN_DIR`, else `/run/leno` for
    /// the machine's root, else `leno` in `XDG_RUNTIME_DIR`, else `/tmp/leno-<uid>`; then the stage's name.
    pub fn run_dir(&self) -> PathBuf {
        self.base().join(&self.name)
    }

    /// Where the run directories of all stages are.
    pub(crate) fn base(&self) -> PathBuf {
        self.chosen_base().unwrap_or_else(default_base)
    }

    /// Whether somebody has said where run directories are.
    pub(crate) fn is_chosen(&self) -> bool {
        self.chosen_base().is_some()
    }

    /// Names of the stages other than this one that run, or have left something behind.
    #[must_use]
    pub fn others(&self) -> Vec<String> {
        if crate::run_dir::check_base(self).is_err() {
            return Vec::new();
        }
        let entries = std::fs::read_dir(self.base()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| *name != self.name && Self::new(name).is_ok()).collect();
        names.sort();
        names
    }

    /// Removes the run directory, and the one above if that was Leno's choice and is empty now.
    pub(crate) fn remove_run_dir(&self) -> std::io::Result<()> {
        match std::fs::remove_dir_all(self.run_dir()) {
            // `leno down` waits for a supervisor whose own end removes it as well.
            Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        if self.chosen_base().is_none() {
            // Other stages may be there.
            let _ = std::fs::remove_dir(default_base());
        }
        Ok(())
    }

    /// Directories that pods must not see into: those of all stages, or where somebody has chosen
    /// the directory, and so may keep other things there, only this one's.
    pub(crate) fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden = vec![default_base()];
        if self.chosen_base().is_some() {
            hidden.push(self.run_dir());
        }
        hidden
    }

    fn chosen_base(&self) -> Option<PathBuf> {
        let chosen = || std::env::var_os("LENO_RUN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let base = self.base.clone().or_else(chosen)?;
        // Proxies and pods are told of it, and begin in other directories.
        Some(std::path::absolute(&base).unwrap_or(base))
    }
}

fn default_base() -> PathBuf {
    if crate::privilege::is_machine_root() {
        PathBuf::from("/run/leno")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        PathBuf::from(dir).join("leno")
    } else {
        PathBuf::from(format!("/tmp/leno-{}", crate::privilege::outer_uid()))
    }
}

/// FNV-1a, 64 bits: names that must stay the same from run to run need a hash that does too,
/// which the standard library's hasher doesn't promise.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
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
    fn a_run_directory_is_the_same_wherever_it_is_asked_for() {
        let stage = StageName { base: Some("stages".into()), ..stage("default") };
        assert_eq!(stage.run_dir(), std::env::current_dir().unwrap().join("stages/default"));
    }

    #[test]
    fn others_are_found_by_their_directories() {
        let base = tempfile::tempdir().unwrap();
        let stage = stage("default").in_dir(base.path());
        assert!(stage.others().is_empty());
        for name in ["lab", "default", "a", "Not a stage"] {
            std::fs::create_dir(base.path().join(name)).unwrap();
        }
        assert_eq!(stage.others(), ["a", "lab"]);
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
