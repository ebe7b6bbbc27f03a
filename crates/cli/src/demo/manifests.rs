//! The files under `samples/`, as the demonstration plays them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The sample application, file by file.
const APPLICATION: [(&str, &str); 6] = [
    (NAMESPACE, include_str!("../../../../samples/emojivoto/namespace.yaml")),
    ("emoji.yaml", include_str!("../../../../samples/emojivoto/emoji.yaml")),
    ("voting.yaml", include_str!("../../../../samples/emojivoto/voting.yaml")),
    ("web.yaml", include_str!("../../../../samples/emojivoto/web.yaml")),
    ("vote-bot.yaml", include_str!("../../../../samples/emojivoto/vote-bot.yaml")),
    ("snoop.yaml", include_str!("../../../../samples/emojivoto/snoop.yaml")),
];

/// Only web may talk to voting.
const POLICY: (&str, &str) =
    ("voting-only-from-web.yaml", include_str!("../../../../samples/emojivoto-policies/voting-only-from-web.yaml"));

const NAMESPACE: &str = "namespace.yaml";

/// The label that enrols the namespace.
const LABEL: &str = "istio.io/dataplane-mode: ambient";

/// Text that every message of the sample carries, as its manifests say.
pub(super) const CANARY: &str = "canary-4f1e0d6c";

/// A directory of manifests that changes as the demonstration goes on.
pub(super) struct Manifests {
    directory: PathBuf,
}

impl Manifests {
    /// Writes the application, outside the mesh, into an empty directory.
    pub(super) fn write(directory: &Path) -> io::Result<Self> {
        let manifests = Self { directory: directory.to_owned() };
        for (file, text) in APPLICATION {
            let text = if file == NAMESPACE { outside(text) } else { text.to_owned() };
            manifests.put(file, &text)?;
        }
        Ok(manifests)
    }

    /// Labels the namespace.
    pub(super) fn enrol(&self) -> io::Result<()> {
        self.put(NAMESPACE, APPLICATION[0].1)
    }

    /// Adds the policy.
    pub(super) fn deny(&self) -> io::Result<()> {
        self.put(POLICY.0, POLICY.1)
    }

    /// Writes by rename, so that watchers see the whole file or none of it.
    fn put(&self, file: &str, text: &str) -> io::Result<()> {
        let draft = self.directory.join(format!(".{file}.draft"));
        fs::write(&draft, text)?;
        fs::rename(draft, self.directory.join(file))
    }
}

/// The namespace without the label.
fn outside(namespace: &str) -> String {
    namespace.replace(&format!("  labels:\n    {LABEL}\n"), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_act_is_outside_the_mesh() {
        let (file, text) = APPLICATION[0];
        assert_eq!(file, NAMESPACE);
        assert!(text.contains(LABEL));
        assert!(!outside(text).contains("dataplane-mode") && outside(text).contains("name: emojivoto"));
    }

    #[test]
    fn every_file_of_the_sample_is_embedded() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples");
        for (directory, embedded) in [("emojivoto", &APPLICATION[..]), ("emojivoto-policies", &[POLICY])] {
            let mut found: Vec<_> = fs::read_dir(samples.join(directory))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            let mut names: Vec<_> = embedded.iter().map(|(file, _)| (*file).to_owned()).collect();
            found.sort();
            names.sort();
            assert_eq!(found, names);
        }
    }

    #[test]
    fn every_program_sends_the_canary() {
        for (file, text) in APPLICATION.iter().filter(|(file, _)| *file != NAMESPACE) {
            assert!(text.contains(&format!("value: {CANARY}\n")), "{file}");
        }
    }
}
