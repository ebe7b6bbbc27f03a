//! Which program was measured. A figure is worthless without that.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::Error;
use crate::subject::Subject;

/// How long a program may take to print its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many characters of a version are kept.
const ROOM: usize = 400;

/// A program's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its path.
    pub path: String,
    /// Size, bytes.
    pub bytes: u64,
    /// SHA-256, hex; empty if it can't be read.
    pub sha256: String,
    /// Its version, as the program prints it.
    pub version: Option<String>,
}

/// A subject in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Its name in this run.
    pub name: String,
    /// The programs that carry the traffic: one for all nodes, or one for each node. Empty for no mesh.
    pub programs: Vec<Program>,
    /// Whether the traffic between nodes is encrypted. Every round checks it.
    pub encrypts: bool,
}

impl Subject {
    /// The subject's description for the report. `this` is the program that runs the lab.
    ///
    /// # Errors
    /// [`Error::Usage`] for programs that can't be started, [`Error::Io`] when the system lacks what is needed.
    pub(crate) async fn identify(&self, this: &Path) -> Result<Identified, Error> {
        let ask = async |path: &Path, argument| {
            let what = || format!("subject {self}: {} cannot be started", path.display());
            Program::find(path, argument).await.map_err(|error| match likely(&error) {
                Some(likely) => Error::Usage(format!("{}: {error}; {likely}", what())),
                None => Error::io(what())(error),
            })
        };
        let programs = match self {
            // What a cluster runs is asked there.
            Self::None | Self::Installed => Vec::new(),
            Self::Floor | Self::Leno(None) => vec![ask(this, "version").await?],
            Self::Leno(Some(path)) | Self::Ztunnel(path) | Self::Istiod(path) => vec![ask(path, "version").await?],
            Self::LenoAndZtunnel(path) => vec![ask(this, "version").await?, ask(path, "version").await?],
            Self::ZtunnelAndLeno(path) => vec![ask(path, "version").await?, ask(this, "version").await?],
            Self::Wireguard(path) | Self::Envoy(path) => vec![ask(path, "--version").await?],
            Self::Haproxy(path) => vec![ask(path, "-v").await?],
            Self::Traefik(path) => vec![ask(path, "version").await?],
        };
        Ok(Identified { name: self.to_string(), programs, encrypts: self.encrypts() })
    }
}

impl Program {
    /// The cargo profile that a Leno was built with. `None` for other programs, and for a Leno that doesn't print it.
    pub(crate) fn profile(&self) -> Option<&str> {
        let (_, build) = self.version.as_deref()?.strip_prefix("leno ")?.split_once('(')?;
        build
            .trim_end_matches(')')
            .rsplit(", ")
            .next()
            .filter(|word| ["dev", "debug", "release", "dist"].contains(word))
    }

    /// Inspects a program and asks for its version with `argument`.
    async fn find(path: &Path, argument: &str) -> io::Result<Self> {
        let file = path.to_owned();
        let sum = tokio::task::spawn_blocking(move || leno_tls::sha256(File::open(file)?)).await;
        Ok(Self {
            path: path.display().to_string(),
            bytes: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
            sha256: sum.ok().and_then(Result::ok).unwrap_or_default(),
            version: version(path, argument).await?,
        })
    }
}

/// The first line that a program prints with this argument. `None` if it does not know the argument or does not end.
async fn version(program: &Path, argument: &str) -> io::Result<Option<String>> {
    let mut command = Command::new(program);
    command.arg(argument).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.kill_on_drop(true).process_group(0);
    crate::child::tie(command.as_std_mut());
    let child = command.spawn()?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok());
    let asked = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    // Processes that it started and left. While one lives, the group's number is not reused.
    if let Some(group) = group {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let Ok(Ok(output)) = asked else { return Ok(None) };
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    Ok(line
        .filter(|_| output.status.success())
        .map(|line| line.chars().filter(|letter| !letter.is_control()).take(ROOM).collect()))
}

/// The reason why an executable file can't be started, if the file is the cause.
fn likely(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("the file is there, but not the loader or interpreter that it names"),
        io::ErrorKind::PermissionDenied => Some("may its directory be entered, or is its file system mounted noexec?"),
        io::ErrorKind::ExecutableFileBusy => Some("is it being written?"),
        _ => (error.raw_os_error() == Some(libc::ENOEXEC)).then_some("is it built for this machine?"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn programs_are_asked() {
        let scratch = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            let path = scratch.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let good =
            program("good", "test \"$1\" = --version || exit 2; echo; printf \"  proxy \\033[31m1.2 \\n\"; echo more");
        let identified = Subject::Envoy(good.clone()).identify(Path::new("/nowhere")).await.unwrap();
        let [found] = &identified.programs[..] else { panic!("{identified:?}") };
        assert_eq!(found.version.as_deref(), Some("proxy [31m1.2"), "no control characters");
        assert_eq!((found.bytes, found.sha256.len()), (std::fs::metadata(&good).unwrap().len(), 64));
        let both = Subject::LenoAndZtunnel(program("silent", "exit 3")).identify(&good).await.unwrap();
        let versions: Vec<_> = both.programs.iter().map(|one| one.version.as_deref()).collect();
        assert_eq!(versions, [None, None], "neither answers to `version`");
        assert!(both.programs[0].sha256 != both.programs[1].sha256);
        assert!(Subject::None.identify(&good).await.unwrap().programs.is_empty());
    }

    #[test]
    fn a_leno_tells_how_it_was_built() {
        let told = |version: &str| {
            let version = Some(version.to_owned());
            Program { path: String::new(), bytes: 0, sha256: String::new(), version }.profile().map(str::to_owned)
        };
        assert_eq!(told("leno 0.1.0 (b8a612b842c6-dirty, release)").as_deref(), Some("release"));
        assert_eq!(told("leno 0.1.0 (dist)").as_deref(), Some("dist"));
        assert_eq!(told("leno 0.1.0 (b8a612b842c6)"), None, "an older one names its commit only");
        assert_eq!(told("ztunnel 1.28 (release)"), None);
    }

    #[tokio::test]
    async fn programs_that_cannot_be_started_are_reported_first() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("orphan");
        std::fs::write(&path, "#!/no/such/interpreter\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let subject = Subject::parse(&format!("ztunnel={}", path.display())).unwrap();
        let error = subject.identify(Path::new("/nowhere")).await.unwrap_err();
        assert!(error.is_usage(), "{error}");
        let error = error.to_string();
        assert!(error.contains("subject ztunnel") && error.contains("orphan cannot be started"), "{error}");
        assert!(error.contains("interpreter"), "{error}");
    }
}
