//! Which program was measured: a figure without that is a rumour.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::subject::Subject;

/// For a program to tell its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// Letters of a version that are kept.
const ROOM: usize = 400;

/// A program's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Where it is.
    pub path: String,
    /// Size, bytes.
    pub bytes: u64,
    /// SHA-256, hex; empty if it can't be read.
    pub sha256: String,
    /// What it says of its version, in its own words.
    pub version: Option<String>,
}

/// A subject in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Its name in this run.
    pub name: String,
    /// What carries the traffic: on every node the same, or one for each node. Empty if nothing does.
    pub programs: Vec<Program>,
    /// Whether what crosses from node to node is encrypted; verified in every round.
    pub encrypts: bool,
}

impl Subject {
    /// What the report says about it. `this` is the program that runs the lab.
    pub(crate) async fn identify(&self, this: &Path) -> Identified {
        let ask = |path, argument| Program::find(path, argument);
        let programs = match self {
            Self::None => Vec::new(),
            Self::Floor | Self::Leno(None) => vec![ask(this, "version").await],
            Self::Leno(Some(path)) | Self::Ztunnel(path) => vec![ask(path, "version").await],
            Self::LenoAndZtunnel(path) => vec![ask(this, "version").await, ask(path, "version").await],
            Self::ZtunnelAndLeno(path) => vec![ask(path, "version").await, ask(this, "version").await],
            Self::Wireguard(path) | Self::Envoy(path) => vec![ask(path, "--version").await],
        };
        Identified { name: self.to_string(), programs, encrypts: self.encrypts() }
    }
}

impl Program {
    /// Looks at a program and asks it for its version by `argument`.
    async fn find(path: &Path, argument: &str) -> Self {
        let file = path.to_owned();
        let sum = tokio::task::spawn_blocking(move || leno_tls::sha256(File::open(file)?)).await;
        Self {
            path: path.display().to_string(),
            bytes: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
            sha256: sum.ok().and_then(Result::ok).unwrap_or_default(),
            version: version(path, argument).await,
        }
    }
}

/// The first line that a program says when it is asked; `None` if it doesn't understand.
async fn version(program: &Path, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg(argument).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    output.status.success().then(|| line.chars().take(ROOM).collect())
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
        let good = program("good", "test \"$1\" = --version || exit 2; echo; echo \"  proxy 1.2 \"; echo more");
        let identified = Subject::Envoy(good.clone()).identify(Path::new("/nowhere")).await;
        let [found] = &identified.programs[..] else { panic!("{identified:?}") };
        assert_eq!(found.version.as_deref(), Some("proxy 1.2"));
        assert_eq!((found.bytes, found.sha256.len()), (std::fs::metadata(&good).unwrap().len(), 64));
        let both = Subject::LenoAndZtunnel(program("silent", "exit 3")).identify(&good).await;
        let versions: Vec<_> = both.programs.iter().map(|one| one.version.as_deref()).collect();
        assert_eq!(versions, [None, None], "neither answers to `version`");
        assert!(both.programs[0].sha256 != both.programs[1].sha256);
        assert!(Subject::None.identify(&good).await.programs.is_empty());
    }
}
