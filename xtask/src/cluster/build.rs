//! Building the cluster's programs from their Go modules: once, into the cache.
//!
//! A part is built in a directory beside its place and moved there when it is whole, so a build that is killed leaves
//! nothing that looks finished. Its place is named after all that went into it, so an edit is never missed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::layout::Layout;
use super::telling::say;
use super::{interrupt, process};
use crate::archive::{Content, Image};
use crate::kept;

mod conformance;

/// The image in which test pods run.
pub(crate) const TOOLBOX: &str = "localhost/toolbox:1";
pub(crate) const COREDNS: &str = "localhost/coredns:1";
/// The first process of each pod; this name is the one that containerd's users expect.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10.1";

const KUBERNETES_PROGRAMS: [&str; 7] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"];

/// Part of the key of what was built: raise it when archives are to be made anew.
const ARCHIVE_FORMAT: &[u8] = b"1";

/// In a command: the directory in which the part is built.
pub(crate) const OUT: &str = "@OUT@";

/// Name of the unfinished ones.
const PARTIAL: &str = ".partial-";

/// Something that is built and kept by itself.
struct Part {
    name: &'static str,
    /// What is said while it is built.
    what: &'static str,
    /// Each the arguments of one `go`. [`OUT`] stands for the directory in which the part is built.
    commands: Vec<Vec<String>>,
    /// The directory of our own Go module that it is built from, below this crate's.
    module: &'static str,
    /// Folders of the module, if it is built from one.
    sources: &'static [&'static str],
    finish: fn(&Path) -> Result<()>,
}

/// Builds what is missing and returns the directories of all parts.
pub(crate) fn all(layout: &Layout) -> Result<Vec<PathBuf>> {
    each(layout, described())
}

/// Builds what is missing of the conformance suite, and returns the directories of the suite and of its pods' image.
pub(crate) fn conformance(layout: &Layout) -> Result<[PathBuf; 2]> {
    let _lock = layout.lock()?;
    let built = each(layout, vec![conformance::suite(), conformance::echo()])?;
    built.try_into().map_err(|_| anyhow::anyhow!("there are two parts"))
}

fn each(layout: &Layout, described: Vec<Part>) -> Result<Vec<PathBuf>> {
    let parts = layout.parts();
    fs::create_dir_all(&parts).with_context(|| format!("creating {}", parts.display()))?;
    sweep(&parts)?;
    let mut built = Vec::new();
    for part in described {
        let place = parts.join(format!("{}-{}", part.name, part.key()?));
        if !place.exists() {
            part.build(&parts, &place).with_context(|| format!("building {}", part.what))?;
        }
        built.push(place);
    }
    Ok(built)
}

/// Whether all is there already, so that no Go is needed.
pub(crate) fn nothing_to_do(layout: &Layout) -> Result<bool> {
    for part in described() {
        if !layout.parts().join(format!("{}-{}", part.name, part.key()?)).exists() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the module of the cluster's own programs is.
const CLUSTER: &str = "cluster/go";

fn described() -> Vec<Part> {
    // Without these, Kubernetes takes itself for an unreleased version, and its parts refuse one another.
    let version = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
        .map(|package| format!("-X {package}.gitVersion=v1.37.1 -X {package}.gitMajor=1 -X {package}.gitMinor=37"))
        .join(" ");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let build = |linker: &str, packages: &str| {
        let mut command = words("install -ldflags");
        command.push(format!("-s -w {linker}"));
        command.extend(words(packages));
        command
    };
    let install = |version: &str, prefix: &str, packages: &str| {
        let mut command = words("install -ldflags");
        command.push("-s -w".to_owned());
        command.extend(packages.split_whitespace().map(|package| format!("{prefix}/{package}@{version}")));
        command
    };
    vec![
        Part {
            name: "kubernetes",
            what: "Kubernetes and etcd (ten minutes the first time)",
            commands: vec![build(&version, "./hyperkube")],
            module: CLUSTER,
            sources: &["hyperkube"],
            finish: |place| {
                for program in KUBERNETES_PROGRAMS {
                    symlink("hyperkube", place.join(program)).context("linking")?;
                }
                Ok(())
            },
        },
        Part {
            name: "images",
            what: "CoreDNS and the images",
            commands: vec![build("", "./pause ./coredns ./toolbox")],
            module: CLUSTER,
            sources: &["pause", "coredns", "toolbox"],
            finish: |place| {
                for (program, image) in [("pause", PAUSE), ("coredns", COREDNS), ("toolbox", TOOLBOX)] {
                    let path = place.join(program);
                    pack(&path, program, image)?;
                    fs::remove_file(&path).context("removing what is packed")?;
                }
                Ok(())
            },
        },
        Part {
            name: "containerd",
            what: "containerd",
            commands: vec![install(
                "v2.4.2",
                "github.com/containerd/containerd/v2/cmd",
                "containerd containerd-shim-runc-v2 ctr",
            )],
            module: CLUSTER,
            sources: &[],
            finish: |_| Ok(()),
        },
        Part {
            name: "cni",
            what: "the CNI plugins",
            commands: vec![install(
                "v1.9.1",
                "github.com/containernetworking/plugins/plugins",
                "main/bridge main/ptp main/loopback ipam/host-local meta/portmap",
            )],
            module: CLUSTER,
            sources: &[],
            finish: |_| Ok(()),
        },
    ]
}

/// Writes the image that holds one program, beside it.
fn pack(path: &Path, file: &str, image: &str) -> Result<()> {
    let program = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let content = Content { image, file, program: &program, beside: &[], user: None, labels: &[] };
    Image::new(&content)?.write(&path.with_extension("tar")).map(drop)
}

impl Part {
    /// Where our Go sources are.
    fn sources(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.module)
    }

    /// Over all that decides what comes out.
    fn key(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(self.name.as_bytes());
        add(ARCHIVE_FORMAT);
        add(std::env::consts::ARCH.as_bytes());
        for argument in self.commands.iter().flatten() {
            add(argument.as_bytes());
        }
        if !self.sources.is_empty() {
            let sources = self.sources();
            let mut files = vec![sources.join("go.mod"), sources.join("go.sum")];
            for folder in self.sources {
                let folder = sources.join(folder);
                let entries = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
                let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
                paths.sort();
                files.extend(paths);
            }
            for file in files {
                // The same wherever the source tree lies.
                add(file.strip_prefix(&sources).unwrap_or(&file).as_os_str().as_encoded_bytes());
                add(&fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
            }
        }
        Ok(kept::key(hash))
    }

    fn build(&self, parts: &Path, place: &Path) -> Result<()> {
        say(&format!("building {}", self.what));
        let began = Instant::now();
        let partial = tempfile::Builder::new()
            .prefix(PARTIAL)
            .tempdir_in(parts)
            .with_context(|| format!("creating a directory in {}", parts.display()))?;
        for command in &self.commands {
            self.go(command, partial.path())?;
        }
        (self.finish)(partial.path())?;
        // A temporary directory is its maker's alone.
        fs::set_permissions(partial.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let path = partial.keep();
        fs::rename(&path, place).with_context(|| format!("moving {} into place", path.display()))?;
        say(&format!("  built after {} s", began.elapsed().as_secs()));
        Ok(())
    }

    fn go(&self, arguments: &[String], out: &Path) -> Result<()> {
        // Other work goes first: this takes minutes.
        let mut command = process::tied("nice");
        let out_of = |argument: &String| argument.replace(OUT, &out.display().to_string());
        command.args(["-n", "10", "go"]).args(arguments.iter().map(out_of));
        command
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .env("GOFLAGS", "-trimpath -buildvcs=false")
            // There is memory enough, and collecting garbage takes a fifth of the time.
            .env("GOGC", "off")
            .env("GOBIN", out)
            .current_dir(out);
        if !self.sources.is_empty() {
            command.current_dir(self.sources());
        }
        let log = parts_log(out);
        let output = fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().context("duplicating a descriptor")?;
        let mut child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().context("starting go")?;
        let (began, mut reminded) = (Instant::now(), Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait().context("waiting for go")? {
                break status;
            }
            if reminded.elapsed() > Duration::from_secs(60) {
                reminded = Instant::now();
                say(&format!("  still building ({} s)", began.elapsed().as_secs()));
            }
            if let Err(error) = interrupt::check() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        if !status.success() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let failed = format!("`go {}` failed ({status}):\n{}", arguments.join(" "), said.trim());
            if concerns_the_proxy(&said) {
                return Err(Unreachable { failed }.into());
            }
            bail!(failed);
        }
        fs::remove_file(&log).with_context(|| format!("removing {}", log.display()))
    }
}

/// Go modules can't be had from where this machine looks for them.
#[derive(Debug, thiserror::Error)]
#[error(
    "{failed}\nThe Go module proxy can't be reached or does not have these modules; `go env GOPROXY` shows which it is"
)]
pub(crate) struct Unreachable {
    failed: String,
}

/// Whether it was a download that failed. `go` names the address then, and how it was asked.
fn concerns_the_proxy(said: &str) -> bool {
    [": Get \"http", ": reading http", "module lookup disabled by GOPROXY=off"].iter().any(|sign| said.contains(sign))
}

fn parts_log(out: &Path) -> PathBuf {
    out.join("go.log")
}

/// Removes what builds left that were killed.
fn sweep(parts: &Path) -> Result<()> {
    for entry in fs::read_dir(parts).with_context(|| format!("listing {}", parts.display()))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Makes the links by which programs are called, in the cache's `bin`. They are relative, since nodes see the cache
/// elsewhere.
pub(crate) fn link(layout: &Layout, parts: &[PathBuf]) -> Result<()> {
    let bin = layout.bin();
    if bin.exists() {
        fs::remove_dir_all(&bin).with_context(|| format!("removing {}", bin.display()))?;
    }
    fs::create_dir_all(&bin).with_context(|| format!("creating {}", bin.display()))?;
    for part in parts {
        let directory = part.file_name().unwrap_or_default();
        for entry in fs::read_dir(part).with_context(|| format!("listing {}", part.display()))?.flatten() {
            let target = Path::new("../parts").join(directory).join(entry.file_name());
            symlink(target, bin.join(entry.file_name())).context("linking a program")?;
        }
    }
    Ok(())
}

/// A program that runs something of the cluster's, named by its link.
pub(crate) fn command(layout: &Layout, program: &str) -> Command {
    Command::new(layout.bin().join(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_a_key_of_its_own_which_stays() {
        let keys = || described().iter().map(|part| part.key().unwrap()).collect::<Vec<_>>();
        let (first, second) = (keys(), keys());
        assert_eq!(first, second);
        assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), first.len());
    }

    /// As Go 1.26 says it.
    #[test]
    fn a_download_that_failed_is_told_from_code_that_does_not_compile() {
        let refused = "go: github.com/coredns/coredns@v1.14.6: Get \"https://proxy.golang.org/github.com/coredns/coredns/@v/v1.14.6.mod\": dial tcp: connect: connection refused";
        let absent = "go: module x: reading https://proxy.golang.org/x/@v/list: 404 Not Found";
        assert!(concerns_the_proxy(refused) && concerns_the_proxy(absent));
        assert!(!concerns_the_proxy("toolbox/main.go:31:2: undefined: serve"));
    }

    #[test]
    fn a_build_that_was_killed_is_not_taken_for_a_finished_one() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::of(directory.path());
        let left = layout.parts().join(format!("{PARTIAL}x"));
        fs::create_dir_all(left.join("deep")).unwrap();
        assert!(!nothing_to_do(&layout).unwrap());
        sweep(&layout.parts()).unwrap();
        assert!(!left.exists());
    }
}
