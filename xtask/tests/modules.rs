//! The shape of each crate: no files that import each other in a ring, few that are long, and no function with a long list of
//! parameters.

#[path = "modules/graph.rs"]
mod graph;

use std::fs;
use std::path::{Path, PathBuf};

use graph::Crate;

/// Files with a function of more than six parameters. A name goes with that function; none is to be added.
const STILL_MANY_PARAMETERS: [&str; 0] = [];

/// Nine of ten files are shorter.
const LINES_P90: usize = 350;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Every crate's name and the file it begins with.
fn crates() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut directories: Vec<_> =
        fs::read_dir(root().join("crates")).expect("crates").map(|entry| entry.expect("an entry").path()).collect();
    directories.push(root().join("xtask"));
    directories.sort();
    for directory in directories {
        let name = directory.file_name().expect("a name").to_string_lossy().into_owned();
        for begin in ["src/lib.rs", "src/main.rs"] {
            if directory.join(begin).exists() {
                found.push((name.clone(), directory.join(begin)));
            }
        }
    }
    found
}

#[test]
fn no_files_import_each_other_in_a_ring() {
    let mut violations = Vec::new();
    let mut files = 0;
    for (name, begin) in crates() {
        let crate_ = Crate::read(&begin);
        files += crate_.len();
        violations.extend(crate_.rings().into_iter().map(|ring| format!("{name}: {ring}")));
    }
    assert!(files > 100, "only {files} files were found");
    assert!(violations.is_empty(), "\n  {}\n", violations.join("\n  "));
}

#[test]
fn rings_are_found_and_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    let rings = || Crate::read(&dir.path().join("lib.rs")).rings();
    // A facade that passes names on is no member of a ring, and neither are tests.
    write("lib.rs", "mod a; mod b; mod c; pub use b::Made; #[cfg(test)] mod t; mod generated { }");
    write("a/mod.rs", "mod one; mod two; pub(crate) use one::One;");
    write("a/one.rs", "use super::two::Two; pub struct One(Two);");
    write("a/two.rs", "pub struct Two; #[cfg(test)] mod tests { use crate::a::One; }");
    write("b.rs", "use crate::a::One; pub struct Made(One); // use crate::c::C;\n");
    write("c.rs", "use crate::Made; pub fn c() -> Made { let text = \"crate::b\"; todo!(\"{text}\") }");
    assert_eq!(rings(), Vec::<String>::new());
    // Through the facade's name, in a macro, without `use`.
    write("a/two.rs", "pub struct Two; fn f() { println!(\"{:?}\", crate::c::c()); }");
    assert_eq!(rings(), ["3 import each other: a -> c -> b -> a (a/two uses c, c uses b, b uses a/one)"]);
    // A parent and a child are one thing in two files; two children are not.
    write("a/two.rs", "use super::Shared; pub struct Two(Shared);");
    write("a/mod.rs", "mod one; mod two; pub(crate) use one::One; pub struct Shared; fn f() -> two::Two { todo!() }");
    assert_eq!(rings(), Vec::<String>::new());
    write("a/two.rs", "pub struct Two; fn f(_: super::One) {}");
    assert_eq!(rings(), ["2 import each other: a/one -> a/two -> a/one (a/one uses a/two, a/two uses a/one)"]);
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if !path.ends_with("generated") && !path.ends_with("target") {
                rust_files(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    rust_files(&root().join("xtask"), &mut files);
    files
        .into_iter()
        .map(|file| {
            let text = fs::read_to_string(&file).expect("a source file");
            (file, text)
        })
        .collect()
}

/// Tests apart: those of one thing may be many.
#[test]
fn nine_of_ten_files_are_short() {
    let is_test = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with("_tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
    };
    let files = sources().into_iter().filter(|(file, _)| !is_test(file));
    let mut lengths: Vec<_> = files.map(|(file, text)| (text.lines().count(), file)).collect();
    lengths.sort();
    let (p90, _) = lengths[(lengths.len() * 9).div_ceil(10) - 1];
    let longest: Vec<_> =
        lengths.iter().rev().take(10).map(|(lines, file)| format!("{lines} {}", file.display())).collect();
    assert!(p90 < LINES_P90, "nine of ten files have up to {p90} lines; the longest:\n  {}\n", longest.join("\n  "));
}

/// The compiler's companion refuses more than six; here it is seen that nobody tells it to look away.
#[test]
fn parameters_stay_few() {
    let settings = fs::read_to_string(root().join("clippy.toml")).expect("clippy.toml");
    assert!(settings.contains("\ntoo-many-arguments-threshold = 6\n"), "clippy.toml does not limit parameters to six");
    let name = concat!("clippy::too_many", "_arguments");
    let mut violations = Vec::new();
    for (file, text) in sources() {
        let file = file.strip_prefix(root()).expect("a file of the workspace").display().to_string();
        match (STILL_MANY_PARAMETERS.contains(&file.as_str()), text.contains(name)) {
            (false, true) => violations.push(format!("{file} switches {name} off")),
            (true, false) => violations.push(format!("{file} has no such function any more: take it off the list")),
            _ => (),
        }
    }
    assert!(violations.is_empty(), "\n  {}\n", violations.join("\n  "));
}
