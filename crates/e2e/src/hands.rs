//! What a test does to the cluster from outside, where this machine has made it: restart its API server, reboot a node.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::Cluster;
use crate::error::Error;

/// `cargo xtask cluster`, of the cluster that the tests are about.
#[derive(Debug, Clone)]
pub struct Hands {
    program: PathBuf,
}

impl Hands {
    /// `None` if the cluster is another one than this machine's, which nobody here can take apart.
    pub fn find(cluster: &Cluster) -> Option<Self> {
        // Cargo puts it where it puts this test's directory.
        let this = std::env::current_exe().ok()?;
        let program = this.parent()?.parent()?.join("xtask");
        let output = Command::new(&program).args(["cluster", "status", "-o", "json"]).output().ok()?;
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let own = Path::new(status["kubeconfig"].as_str()?).canonicalize().ok()?;
        (cluster.kubectl().kubeconfig().canonicalize().ok()? == own).then_some(Self { program })
    }

    /// Kills a program of the control plane; it is started again after so many seconds. Returns once the API server answers.
    ///
    /// # Errors
    ///
    /// If it does not come back.
    pub fn restart(&self, program: &str, away: u64) -> Result<(), Error> {
        self.run(&["restart", program, "--away", &away.to_string()])
    }

    /// Ends all that runs on a node, and starts its own programs again.
    ///
    /// # Errors
    ///
    /// If it does not begin to boot.
    pub fn reboot(&self, node: &str) -> Result<(), Error> {
        self.run(&["reboot", node])
    }

    fn run(&self, arguments: &[&str]) -> Result<(), Error> {
        let program = || self.program.display().to_string();
        let output = Command::new(&self.program).arg("cluster").args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|source| Error::Start { program: program(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Cluster { arguments: arguments.join(" "), said })
    }
}
