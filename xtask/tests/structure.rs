//! The shape of the workspace, as ARCHITECTURE.md tells it: which crate may use which, how manifests
//! are written, how long a file may be.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crates. An arrow may only point at one that stands further up.
const ROOMS: [&str; 21] = [
    "model",
    "objects",
    "policy",
    "proto",
    "tls",
    "telemetry",
    "dns",
    "tunnel",
    "xds",
    "capture",
    "proxy",
    "node",
    "waypoint",
    "control",
    "kubernetes",
    "agent",
    "local",
    "lab",
    "install",
    "cli",
    "leno",
];

/// Beside the rooms: for tests only, tests themselves, and for developers only.
const OUTSIDE: [&str; 3] = ["testkit", "e2e", "xtask"];

/// What only `tls` may name: an application that handles TLS in two places has two sets of rules for it.
const TLS_LIBRARIES: [&str; 9] = [
    "rustls",
    "tokio-rustls",
    "rustls-pki-types",
    "rustls-webpki",
    "rustls-pemfile",
    "aws-lc-rs",
    "rcgen",
    "x509-parser",
    "hyper-rustls",
];

/// What a crate must never need, because of what it never does.
const NEVER: [(&str, &[&str]); 14] = [
    ("model", &["tokio", "prost", "tonic", "nix", "libc", "serde-saphyr", "rand"]),
    ("objects", &["tokio", "prost", "tonic", "nix", "libc", "rand", "tracing"]),
    ("policy", &["tokio", "prost", "tonic", "nix", "libc", "rand", "time", "tracing"]),
    ("dns", &["leno-model", "leno-policy", "nix", "rand"]),
    ("tunnel", &["leno-model", "leno-policy", "leno-proto"]),
    ("telemetry", &["leno-policy", "leno-proto", "tonic"]),
    ("xds", &["leno-policy", "leno-capture", "serde-saphyr", "nix"]),
    ("capture", &["leno-policy", "leno-tunnel", "leno-tls", "h2"]),
    ("proxy", &["leno-control", "serde-saphyr", "tonic", "hickory-proto"]),
    ("node", &["leno-control", "serde-saphyr", "tonic"]),
    ("waypoint", &["leno-node", "leno-control", "serde-saphyr", "tonic", "tower", "nix"]),
    ("agent", &["leno-node", "leno-proxy", "leno-control", "leno-tls", "kube-client"]),
    ("control", &["leno-node", "leno-capture", "leno-tunnel", "nix", "serde-saphyr"]),
    ("kubernetes", &["leno-node", "leno-proxy", "leno-capture", "leno-tunnel", "nix"]),
];

/// Longest file written by hand. Long before that it holds two topics.
const LINES_MAX: usize = 1000;

struct Package {
    /// Without the `leno-` of its library crates.
    room: String,
    manifest: PathBuf,
    /// Name and kind (`normal`, `dev`, `build`).
    dependencies: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let packages: Vec<_> = packages
        .iter()
        .map(|package| Package {
            room: room(&text(&package["name"])).to_owned(),
            manifest: PathBuf::from(text(&package["manifest_path"])),
            dependencies: package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .map(|dependency| {
                    (text(&dependency["name"]), dependency["kind"].as_str().unwrap_or("normal").to_owned())
                })
                .collect(),
        })
        .collect();
    assert!(packages.len() >= ROOMS.len(), "only {} packages found", packages.len());
    packages
}

/// What a crate takes of another that stands above it, where that is not all of it: `tls` owns the data path's buffers, since
/// records are sealed and opened in them, and whose certificate a connection has stays none of `tunnel`'s business; the rules
/// that `capture` installs lead to the ports that `model` names, and what is in a mesh stays none of its business; `xds` finds
/// frames and counts a flood as `tunnel` does, and has no tunnels.
const PART_ONLY: [(&str, &str, &[&str]); 3] = [
    ("tunnel", "leno_tls", &["leno_tls::buffer::"]),
    ("capture", "leno_model", &["leno_model::ports::"]),
    ("xds", "leno_tunnel", &["leno_tunnel::calm::", "leno_tunnel::frame::"]),
];

#[test]
fn some_take_a_part_and_nothing_else() {
    for (room, of, parts) in PART_ONLY {
        let mut seen = 0;
        let mut files = Vec::new();
        rust_files(&root().join("crates").join(room).join("src"), &mut files);
        for path in files {
            let text = fs::read_to_string(&path).expect("a source file");
            for line in text.lines().filter(|line| line.contains(of)) {
                assert!(parts.iter().any(|part| line.contains(part)), "{}: {line}", path.display());
                seen += 1;
            }
        }
        assert!(seen > 0, "{room} no longer needs {of}: forbid it again");
    }
}

fn room(package: &str) -> &str {
    package.strip_prefix("leno-").unwrap_or(package)
}

fn rank(room: &str) -> Option<usize> {
    ROOMS.iter().position(|known| *known == room)
}

fn none(violations: &[String]) {
    assert!(violations.is_empty(), "\n  {}\n", violations.join("\n  "));
}

#[test]
fn arrows_point_up() {
    let packages = packages();
    let mut violations = Vec::new();
    for package in &packages {
        if rank(&package.room).is_none() && !OUTSIDE.contains(&package.room.as_str()) {
            violations.push(format!("{} is not in the list of crates: give it its place", package.room));
        }
        for (dependency, kind) in &package.dependencies {
            let target = room(dependency);
            if target == dependency && !["leno", "xtask"].contains(&target) {
                continue; // From outside the workspace.
            }
            match (rank(&package.room), rank(target)) {
                (_, None) if target == "testkit" && kind == "dev" => (),
                (_, None) => violations.push(format!("{} uses {target} ({kind}): for tests only", package.room)),
                (Some(user), Some(used)) if used >= user => {
                    violations.push(format!("{} uses {target} ({kind}): the arrow points down", package.room));
                }
                _ => (),
            }
        }
    }
    none(&violations);
}

#[test]
fn only_tls_handles_tls() {
    let mut violations = Vec::new();
    for package in packages() {
        for (dependency, kind) in &package.dependencies {
            // testkit mints the broken certificates that hostile peers present in tests, and xtask those of a Kubernetes
            // cluster's own parts.
            let exempt = ["tls", "testkit", "xtask"].contains(&package.room.as_str()) || kind == "dev";
            let forbidden = TLS_LIBRARIES.contains(&dependency.as_str()) && !exempt;
            if forbidden || ["ring", "openssl", "native-tls"].contains(&dependency.as_str()) {
                violations.push(format!("{} names {dependency}: that is the business of crates/tls", package.room));
            }
        }
    }
    none(&violations);
}

#[test]
fn crates_do_without_what_they_never_do() {
    let packages = packages();
    let mut violations = Vec::new();
    for (room, never) in NEVER {
        let package = packages.iter().find(|package| package.room == room).expect("a crate of the list");
        for (dependency, kind) in &package.dependencies {
            if kind != "dev" && never.contains(&dependency.as_str()) {
                violations.push(format!("{room} needs {dependency}, against its law in ARCHITECTURE.md"));
            }
        }
    }
    none(&violations);
}

#[test]
fn manifests_inherit_from_the_workspace() {
    let mut violations = Vec::new();
    for package in packages() {
        let manifest = read(&package.manifest);
        if !manifest.contains("[lints]\nworkspace = true") {
            violations.push(format!("{} lacks `[lints] workspace = true`", package.manifest.display()));
        }
        let mut in_dependencies = false;
        for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]");
            } else if in_dependencies && !line.contains("workspace = true") {
                violations.push(format!("{}: {line}: versions belong in the workspace", package.manifest.display()));
            }
        }
    }
    none(&violations);
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

#[test]
fn files_have_one_topic() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    rust_files(&root().join("xtask"), &mut files);
    assert!(files.len() > ROOMS.len(), "the sources were not found");
    let violations: Vec<_> = files
        .iter()
        .filter_map(|file| {
            let lines = read(file).lines().count();
            (lines > LINES_MAX).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    none(&violations);
}

/// Cargo runs test programs by their package's name and then their own, and documentation's examples after all of them.
#[test]
fn the_summary_of_skipped_tests_comes_last() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let mut programs = Vec::new();
    let mut violations = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        for target in package["targets"].as_array().expect("targets") {
            let kind = target["kind"][0].as_str().expect("a kind");
            if kind == "lib" && target["doctest"] == true {
                violations.push(format!("{name} lacks `[lib] doctest = false`: it would print after the summary"));
            }
            if kind == "test" {
                programs.push((name.to_owned(), target["name"].as_str().expect("a name").to_owned()));
            }
        }
    }
    let last = programs.into_iter().max();
    assert_eq!(last, Some(("xtask".to_owned(), "summary".to_owned())), "tests/summary.rs must be the last program");
    none(&violations);
}

#[test]
fn the_architecture_names_every_crate() {
    let architecture = read("ARCHITECTURE.md");
    let violations: Vec<_> = ROOMS
        .iter()
        .chain(&["testkit", "e2e"])
        .filter(|room| !architecture.contains(&format!("`crates/{room}`")))
        .map(|room| format!("ARCHITECTURE.md says nothing about `crates/{room}`"))
        .collect();
    none(&violations);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut violations = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        for link in read(document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !root().join(path).exists() {
                violations.push(format!("{document}: {link} does not exist"));
            }
        }
    }
    none(&violations);
}

#[test]
fn ci_runs_the_tests_as_the_readme_says() {
    let readme = read("README.md");
    let command = readme
        .lines()
        .map(str::trim)
        .find(|line| line.contains("cargo test "))
        .expect("README.md says how to run the tests")
        .split('#')
        .next()
        .unwrap_or_default()
        .trim();
    let ci = read(".ci/run");
    assert!(ci.contains(command), ".ci/run does not run {command:?}");
}

/// Cargo's linter takes the nearest `clippy.toml` and no other.
#[test]
fn what_the_linter_forbids_everywhere_it_forbids_on_workers_too() {
    let everywhere = read("clippy.toml");
    let on_workers = read("crates/proxy/clippy.toml");
    let missing: Vec<_> =
        everywhere.lines().filter(|line| !on_workers.contains(line.trim())).map(str::to_owned).collect();
    none(&missing);
    for crate_of_workers in ["node", "tunnel", "waypoint"] {
        assert_eq!(read(format!("crates/{crate_of_workers}/clippy.toml")), on_workers, "{crate_of_workers}");
    }
}

/// What a thread has belongs to its `Worker` and is handed down. What is not, and why: ARCHITECTURE.md, Threads.
const THREAD_LOCALS: [&str; 7] = [
    "crates/capture/src/netns.rs",
    "crates/lab/src/floor/relay.rs",
    "crates/tls/src/buffer.rs",
    "crates/tls/src/turn.rs",
    "crates/tunnel/src/carrier/pace.rs",
    "crates/tunnel/src/timers.rs",
    "crates/waypoint/src/transport/write_coalescing.rs",
];

#[test]
fn threads_have_nothing_of_their_own_but_what_is_listed() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let mut violations = Vec::new();
    let mut seen = 0;
    for file in files.iter().filter(|file| !file.to_string_lossy().ends_with("_tests.rs")) {
        let name = file.strip_prefix(root()).unwrap_or(file).to_string_lossy().into_owned();
        if !read(file).contains("thread_local!") {
            continue;
        }
        if THREAD_LOCALS.contains(&name.as_str()) {
            seen += 1;
        } else {
            violations.push(format!("{name}: a thread-local; let a Worker own it, or say why not"));
        }
    }
    none(&violations);
    assert_eq!(seen, THREAD_LOCALS.len(), "one is gone: take it off the list");
}

/// A setting has one declaration, and what is said of it elsewhere has to have the same name.
#[test]
fn variables_that_are_spoken_of_exist() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    rust_files(&root().join("xtask/src"), &mut files);
    let sources: Vec<_> = files.iter().map(read).collect();
    let quoted: BTreeSet<_> = sources.iter().flat_map(|source| source.split('"')).collect();
    let mut violations = Vec::new();
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(read);
    for text in documents.iter().chain(&sources) {
        for name in text.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_') {
            let is_name = name.strip_prefix("LENO_").is_some_and(|rest| !rest.is_empty() && !rest.ends_with('_'));
            if is_name && !quoted.contains(name) {
                violations.push(format!("{name} is spoken of, and nothing reads it"));
            }
        }
    }
    violations.sort();
    violations.dedup();
    none(&violations);
}

/// A new release of the TLS library is one folder's business. Its `pki_types`, which others share, are not
/// meant, and tests may compare with it.
#[test]
fn the_tls_library_has_one_folder() {
    let source = root().join("crates/tls/src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let (inside, outside): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|path| path.starts_with(source.join("library")));
    let named = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source file");
        text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| line.contains("rustls::"))
    };
    let violations: Vec<String> = outside
        .iter()
        .filter(|path| !path.to_string_lossy().ends_with("_tests.rs") && named(path))
        .map(|path| format!("{} names the TLS library", path.display()))
        .collect();
    none(&violations);
    assert!(
        inside.iter().any(named),
        "crates/tls/src/library names no TLS library: does this test still look for the right thing?"
    );
}
