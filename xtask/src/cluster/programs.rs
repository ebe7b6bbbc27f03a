//! What the machine must have, and the command that installs what it lacks.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Program, what it is for, Debian's package.
const WANTED: [(&str, &str, &str); 5] = [
    ("ip", "links and routes", "iproute2"),
    ("nft", "kube-proxy", "nftables"),
    ("nsenter", "entering a node", "util-linux"),
    ("runc", "containers", "runc"),
    ("nice", "building beside other work", "coreutils"),
];

/// Where daemons' programs are on Debian; not every login looks there.
const ADMINISTRATION: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Fails with all that is missing.
pub(crate) fn check(build: bool) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("nodes are network namespaces, which needs root: sudo -E env \"PATH=$PATH\" cargo xtask cluster up");
    }
    let missing: Vec<_> = WANTED.iter().filter(|(program, ..)| find(program).is_none()).collect();
    let mut said = Vec::new();
    if !missing.is_empty() {
        for (program, purpose, _) in &missing {
            said.push(format!("{program} is not installed ({purpose})"));
        }
        let packages: Vec<_> = missing.iter().map(|(.., package)| *package).collect();
        said.push(format!("  sudo apt-get install -y --no-install-recommends {}", packages.join(" ")));
    }
    if build && find("go").is_none() {
        said.push(
            "go is not installed (builds Kubernetes, once); it must be 1.26 or newer: https://go.dev/doc/install"
                .to_owned(),
        );
    }
    if said.is_empty() { Ok(()) } else { bail!("{}", said.join("\n")) }
}

/// Where a program is.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ADMINISTRATION.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
