//! `load`: images into every node, as there is no registry.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::layout::Layout;
use super::node;
use super::plan::Node;
use super::telling::say;

/// Imports archives into every node's containerd.
pub(crate) fn run(layout: &Layout, archives: &[PathBuf]) -> Result<()> {
    let Some(state) = layout.state().filter(|state| state.complete) else {
        bail!("no cluster runs; `cargo xtask cluster up` starts one");
    };
    for archive in archives {
        let images = std::thread::scope(|scope| {
            let imports: Vec<_> =
                state.plan.nodes().map(|node| scope.spawn(move || import(layout, node, archive))).collect();
            imports
                .into_iter()
                .map(|import| import.join().unwrap_or_else(|_| bail!("importing panicked")))
                .collect::<Result<Vec<_>>>()
        })?;
        say(&format!(
            "{}: on {} nodes: {}",
            archive.display(),
            state.plan.nodes,
            images.first().map_or("", |said| said.trim())
        ));
    }
    Ok(())
}

/// Returns what was imported.
fn import(layout: &Layout, node: Node, archive: &Path) -> Result<String> {
    let mut command = node::enter(layout, node)?;
    // The archive is handed over as an open file: the node sees another file system.
    let file = File::open(archive).with_context(|| format!("opening {}", archive.display()))?;
    command.args(["--", "/run/leno-cluster/bin/ctr", "--namespace", "k8s.io", "images", "import", "--local", "-"]);
    let output = command.stdin(file).output().context("starting nsenter")?;
    if !output.status.success() {
        bail!("importing {} on {}: {}", archive.display(), node.name(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
