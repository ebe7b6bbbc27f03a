//! kubectl, as the tests use it: the program that users have, so that a test does what they would.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::error::Error;

/// kubectl with a kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// The file by which other programs find the cluster.
    pub fn kubeconfig(&self) -> &std::path::Path {
        &self.kubeconfig
    }

    /// A call with these arguments, not made yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).stdin(Stdio::null());
        command
    }

    /// Calls it and returns what came, whatever it was.
    ///
    /// # Errors
    ///
    /// If it can't be started.
    pub fn output(&self, arguments: &[&str]) -> Result<Output, Error> {
        self.command(arguments).output().map_err(|source| self.not_started(source))
    }

    /// Calls it and returns what it printed.
    ///
    /// # Errors
    ///
    /// If it fails, with its own words.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        Self::judged(self.output(arguments)?, arguments)
    }

    /// Calls it for an answer in JSON.
    ///
    /// # Errors
    ///
    /// As [`Kubectl::run`], and if the answer is no JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, Error> {
        let mut all = arguments.to_vec();
        all.push("--output=json");
        serde_json::from_str(&self.run(&all)?).map_err(|source| Error::Json { arguments: arguments.join(" "), source })
    }

    /// Applies manifests.
    ///
    /// # Errors
    ///
    /// As [`Kubectl::run`].
    pub fn apply(&self, manifests: &str) -> Result<(), Error> {
        self.apply_in("default", manifests)
    }

    /// Applies manifests; those that name no namespace, in this one.
    ///
    /// # Errors
    ///
    /// As [`Kubectl::run`].
    pub fn apply_in(&self, namespace: &str, manifests: &str) -> Result<(), Error> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "--namespace", namespace, "--filename", "-"];
        let mut command = self.command(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| self.not_started(source))?;
        if let Some(mut input) = child.stdin.take() {
            // If it ended before it read all, its own words say why.
            let _ = input.write_all(manifests.as_bytes());
        }
        let output = child.wait_with_output().map_err(|source| self.not_started(source))?;
        Self::judged(output, &arguments).map(drop)
    }

    fn judged(output: Output, arguments: &[&str]) -> Result<String, Error> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Kubectl { arguments: arguments.join(" "), said })
    }

    fn not_started(&self, source: std::io::Error) -> Error {
        Error::Start { program: self.program.display().to_string(), source }
    }
}
