//! The program `leno`, as a user calls it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::Cluster;
use crate::error::Error;

/// The program, and the cluster that it is about.
#[derive(Debug, Clone)]
pub struct Leno {
    program: PathBuf,
    kubeconfig: PathBuf,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its exit status; -1 if a signal ended it.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said beside.
    pub stderr: String,
}

impl Leno {
    /// The program of `LENO_PROGRAM`, else the one that `cargo xtask image` put beside its archive. `None` if there is none.
    pub fn find(cluster: &Cluster) -> Option<Self> {
        let program = std::env::var_os("LENO_PROGRAM")
            .filter(|path| !path.is_empty())
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/image/leno"), PathBuf::from);
        let kubeconfig = cluster.kubectl().kubeconfig().to_owned();
        program.exists().then_some(Self { program, kubeconfig })
    }

    /// A call with these arguments, not made yet. It finds the cluster by `KUBECONFIG`, as a user's does.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Calls it and returns what came.
    ///
    /// # Errors
    ///
    /// If it can't be started.
    pub fn call(&self, arguments: &[&str]) -> Result<Ran, Error> {
        let start = |source| Error::Start { program: self.program.display().to_string(), source };
        let output = self.command(arguments).output().map_err(start)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// Calls it and returns what it printed.
    ///
    /// # Errors
    ///
    /// If it can't be started or does not succeed.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        let ran = self.call(arguments)?;
        if ran.code == 0 {
            return Ok(ran.stdout);
        }
        Err(Error::Leno { arguments: arguments.join(" "), code: ran.code, said: ran.stdout + &ran.stderr })
    }

    /// Calls it for an answer in JSON.
    ///
    /// # Errors
    ///
    /// As [`Leno::run`], and if the answer is no JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<serde_json::Value, Error> {
        let printed = self.run(&[arguments, &["--output", "json"]].concat())?;
        serde_json::from_str(&printed).map_err(|source| Error::Json { arguments: arguments.join(" "), source })
    }

    /// The values that name the image of `LENO_IMAGE`, if that is set: `--set image.repository=... --set image.tag=...`.
    pub fn image(&self) -> Vec<String> {
        let Some(image) = std::env::var_os("LENO_IMAGE").and_then(|image: OsString| image.into_string().ok()) else {
            return Vec::new();
        };
        let Some((repository, tag)) = image.rsplit_once(':') else { return Vec::new() };
        ["--set", &format!("image.repository={repository}"), "--set", &format!("image.tag={tag}")]
            .map(str::to_owned)
            .to_vec()
    }
}
