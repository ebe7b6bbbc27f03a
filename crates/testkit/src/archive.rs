//! What is in an archive that a program has written.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// All files of a compressed tar archive with one directory in it, by their names below that directory. `into` is an empty
/// directory.
///
/// # Panics
/// If `tar` can't unpack it, or a file is no text.
pub fn unpacked(archive: &Path, into: &Path) -> BTreeMap<String, String> {
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status().expect("tar runs");
    assert!(status.success(), "{} can't be unpacked", archive.display());
    let mut files = BTreeMap::new();
    let mut directories = vec![into.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.strip_prefix(into).ok().and_then(Path::to_str).and_then(|name| name.split_once('/'));
            let (_, name) = name.expect("a file in the one directory");
            files.insert(name.to_owned(), std::fs::read_to_string(&path).expect("a text"));
        }
    }
    files
}
