//! The test programs that cargo has compiled.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::Value;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Executable {
    pub(super) package: Package,
    /// The name of the target: the crate's, or that of a file or folder in `tests`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The package's directory, in which cargo runs it.
    pub(super) directory: PathBuf,
    /// Whether it has Rust's own harness, and not a `main` of its own.
    pub(super) has_harness: bool,
    is_unit: bool,
}

/// What a manifest says that concerns test programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) manifest: String,
    /// The variables that cargo sets where it runs a program of this package.
    pub(super) environment: Vec<(String, String)>,
}

impl Package {
    /// Of an entry in what `cargo metadata` prints.
    pub(super) fn of(metadata: &Value, manifest: String) -> Option<Self> {
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let version = text("version");
        let (numbers, pre) = version.split_once('-').unwrap_or((&version, ""));
        let mut numbers = numbers.split('.');
        let mut environment = vec![
            ("CARGO_MANIFEST_PATH".to_owned(), text("manifest_path")),
            ("CARGO_PKG_VERSION_PRE".to_owned(), pre.to_owned()),
        ];
        for part in ["MAJOR", "MINOR", "PATCH"] {
            environment.push((format!("CARGO_PKG_VERSION_{part}"), numbers.next()?.to_owned()));
        }
        for key in [
            "name",
            "version",
            "description",
            "homepage",
            "repository",
            "license",
            "license_file",
            "rust_version",
            "readme",
        ] {
            environment.push((format!("CARGO_PKG_{}", key.to_uppercase()), text(key)));
        }
        let authors = metadata["authors"].as_array()?.iter().filter_map(Value::as_str).collect::<Vec<_>>();
        environment.push(("CARGO_PKG_AUTHORS".to_owned(), authors.join(":")));
        Some(Self { name: text("name"), manifest, environment })
    }

    /// The targets in `tests` that bring their own `main`: cargo tells of it only in the manifest.
    fn own_mains(&self) -> Vec<String> {
        let tables = self.manifest.split("[[test]]").skip(1).map(|table| table.split("\n[").next().unwrap_or_default());
        let of_their_own = tables.filter_map(|table| {
            let value = |key: &str| {
                let line = table.lines().find_map(|line| line.trim().strip_prefix(key))?;
                Some(line.trim_start_matches([' ', '=']).trim_matches('"').to_owned())
            };
            (value("harness")? == "false").then(|| value("name"))?
        });
        of_their_own.collect()
    }
}

impl Executable {
    /// `leno-node/mesh`, or `leno-node` for the tests within the crate itself.
    pub(super) fn label(&self) -> String {
        let package = &self.package.name;
        if self.is_unit { package.clone() } else { format!("{package}/{}", self.name) }
    }
}

/// Reads what `cargo test --no-run --message-format=json` prints.
///
/// # Errors
///
/// If there is no test program in it.
pub(super) fn executables(messages: &str, packages: &[Package]) -> Result<Vec<Executable>> {
    let found: Vec<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
            let package = name_of(message["package_id"].as_str()?)?;
            let package = packages.iter().find(|known| known.name == package)?.clone();
            let name = message["target"]["name"].as_str()?.to_owned();
            let is_unit = message["target"]["kind"][0] != "test";
            let has_harness = is_unit || !package.own_mains().contains(&name);
            let path = PathBuf::from(message["executable"].as_str()?);
            Some(Executable { package, name, path, directory, has_harness, is_unit })
        })
        .collect();
    ensure!(!found.is_empty(), "cargo named no test program");
    Ok(found)
}

/// The package's name in an identity such as `path+file:///x/crates/node#leno-node@0.1.0`, or `…/xtask#0.1.0` where the
/// directory has the same name.
fn name_of(id: &str) -> Option<String> {
    let (source, after) = id.rsplit_once('#')?;
    let name = match after.rsplit_once('@') {
        Some((name, _version)) => name,
        None => source.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/crates/node#leno-node@0.1.0","manifest_path":"/x/crates/node/Cargo.toml","target":{"kind":["lib"],"name":"leno_node"},"profile":{"test":true},"executable":"/t/leno_node-1"}
{"reason":"compiler-artifact","package_id":"path+file:///x/crates/node#leno-node@0.1.0","manifest_path":"/x/crates/node/Cargo.toml","target":{"kind":["lib"],"name":"leno_node"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///x/crates/local#leno-local@0.1.0","manifest_path":"/x/crates/local/Cargo.toml","target":{"kind":["test"],"name":"stage"},"profile":{"test":true},"executable":"/t/stage-1"}
{"reason":"compiler-artifact","package_id":"path+file:///x/xtask#0.1.0","manifest_path":"/x/xtask/Cargo.toml","target":{"kind":["bin"],"name":"xtask"},"profile":{"test":true},"executable":"/t/xtask-1"}
{"reason":"build-finished","success":true}
"#;

    fn package(name: &str, manifest: &str) -> Package {
        Package { name: name.to_owned(), manifest: manifest.to_owned(), environment: Vec::new() }
    }

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let manifest = "[package]\nname = \"leno-local\"\n\n# Its own.\n[[test]]\nname = \"stage\"\nharness = false\n\n[dependencies]\n";
        let packages = [package("leno-node", ""), package("leno-local", manifest), package("xtask", "")];
        let found = executables(MESSAGES, &packages).expect("three programs");
        let seen: Vec<_> = found.iter().map(|one| (one.label(), one.has_harness)).collect();
        let wanted = [("leno-node", true), ("leno-local/stage", false), ("xtask", true)];
        assert_eq!(seen, wanted.map(|(label, harness)| (label.to_owned(), harness)));
        assert_eq!(found[1].directory, Path::new("/x/crates/local"));
    }

    #[test]
    fn a_run_without_tests_is_none() {
        assert!(executables("{\"reason\":\"build-finished\"}", &[]).is_err());
    }

    #[test]
    fn a_table_with_a_harness_brings_no_main() {
        let manifest = "[[test]]\nname = \"one\"\n\n[[test]]\nname = \"two\"\nharness = false\n";
        assert_eq!(package("p", manifest).own_mains(), ["two"]);
    }

    #[test]
    fn a_program_sees_the_variables_that_cargo_sets() {
        let metadata = serde_json::json!({
            "name": "leno-cli", "version": "0.1.2-rc.1", "manifest_path": "/x/Cargo.toml", "authors": ["A", "B"],
            "license": "Apache-2.0", "readme": null
        });
        let package = Package::of(&metadata, String::new()).expect("a package");
        let value =
            |name: &str| package.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        for (name, wanted) in [
            ("CARGO_PKG_NAME", "leno-cli"),
            ("CARGO_PKG_VERSION", "0.1.2-rc.1"),
            ("CARGO_PKG_VERSION_PATCH", "2"),
            ("CARGO_PKG_VERSION_PRE", "rc.1"),
            ("CARGO_PKG_README", ""),
            ("CARGO_PKG_AUTHORS", "A:B"),
        ] {
            assert_eq!(value(name), Some(wanted), "{name}");
        }
    }
}
