//! Rust code for the protobuf messages of `leno-proto` and of the sample application.
//!
//! The result is committed, so that a build needs neither `protoc` nor the crates that stand in
//! for it here.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One crate's messages: the files below `protos`, compiled into `out`. Both paths start at the
/// workspace's root.
struct Package {
    protos: &'static str,
    files: &'static [&'static str],
    out: &'static str,
    /// Of these files a server is not made, and the file that is made of each: our own speaks gRPC itself.
    clients_only: &'static [(&'static str, &'static str)],
}

const PACKAGES: [Package; 2] = [
    Package {
        protos: "crates/proto/proto",
        files: &[
            "google/rpc/status.proto",
            "envoy/config/core/v3/base.proto",
            "envoy/service/auth/v3/check.proto",
            "envoy/service/discovery/v3/ads.proto",
            "istio/auth/ca.proto",
            "istio/security/authorization.proto",
            "istio/workload/workload.proto",
            "istio/zds/zds.proto",
            "leno/waypoint/v1/authorization.proto",
            "leno/waypoint/v1/defaults.proto",
            "leno/waypoint/v1/endpoints.proto",
            "leno/waypoint/v1/route.proto",
        ],
        out: "crates/proto/src/generated",
        clients_only: &[("envoy/service/discovery/v3/ads.proto", "envoy.service.discovery.v3.rs")],
    },
    Package {
        protos: "crates/cli/proto",
        files: &["sample.proto"],
        out: "crates/cli/src/sample/generated",
        clients_only: &[],
    },
];

/// Replaces the committed code.
pub(crate) fn run() -> Result<()> {
    PACKAGES.iter().try_for_each(|package| generate(package, &workspace().join(package.out)))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn generate(package: &Package, out: &Path) -> Result<()> {
    compile(package, package.files, true, out)?;
    for (file, made) in package.clients_only {
        let apart = tempfile::tempdir().context("creating a temporary directory")?;
        compile(package, &[file], false, apart.path())?;
        fs::copy(apart.path().join(made), out.join(made)).with_context(|| format!("replacing {made}"))?;
    }
    Ok(())
}

fn compile(package: &Package, files: &[&str], servers: bool, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let descriptors = protox::compile(files, [workspace().join(package.protos)])?;
    let mut config = tonic_prost_build::Config::new();
    // Discovery wraps resources in `Any`, which wants the full type URL.
    config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    tonic_prost_build::configure()
        .build_server(servers)
        .out_dir(out)
        .include_file("mod.rs")
        // Resources are hashed and compared in encoded form: maps must have an order.
        .btree_map(".")
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds_with_config(descriptors, config)
        .context("generating code")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(dir: &Path) -> BTreeMap<String, String> {
        fs::read_dir(dir)
            .expect("directory of generated code")
            .map(|entry| {
                let entry = entry.expect("entry");
                let name = entry.file_name().into_string().expect("UTF-8 name");
                (name, fs::read_to_string(entry.path()).expect("generated file"))
            })
            .collect()
    }

    #[test]
    fn committed_code_is_current() {
        for package in &PACKAGES {
            let fresh = tempfile::tempdir().expect("temporary directory");
            generate(package, fresh.path()).expect("generation");
            let (fresh, committed) = (read(fresh.path()), read(&workspace().join(package.out)));
            assert!(!fresh.is_empty());
            assert!(
                fresh.keys().eq(committed.keys()),
                "{}: other files: {:?} vs {:?}; run `cargo xtask codegen`",
                package.out,
                fresh.keys(),
                committed.keys()
            );
            for (name, code) in &fresh {
                assert!(*code == committed[name], "{name} is not what its .proto says; run `cargo xtask codegen`");
            }
        }
    }
}
