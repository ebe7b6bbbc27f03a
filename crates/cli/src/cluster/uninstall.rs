//! `leno uninstall`.

use anyhow::bail;
use leno_install::cluster::{self, Removal, Turns};
use serde_json::json;

use super::client;
use crate::args::{Format, UninstallArgs};
use crate::output;

/// `leno uninstall`.
pub(super) async fn run(args: UninstallArgs, turns: &Turns) -> anyhow::Result<()> {
    let client = client(&args.cluster).await?;
    let mut waiting = String::new();
    let mut says = |line: String| {
        eprintln!("{line}");
        waiting = line;
    };
    let removing = cluster::remove(&client, &args.cluster.namespace, args.purge, &mut says);
    let removing = turns.alone(&client, removing);
    match tokio::time::timeout(args.timeout, removing).await {
        Ok(removal) => print(&removal?, &args),
        Err(_) => bail!(
            "not everything was gone after {} s{}; the same command goes on from there. A pod whose node is gone for \
             good ends only by `kubectl delete pod --force`, and whoever set a finalizer has to remove it",
            args.timeout.as_secs(),
            if waiting.is_empty() { waiting } else { format!(" ({waiting})") },
        ),
    }
}

fn print(removal: &Removal, args: &UninstallArgs) -> anyhow::Result<()> {
    if args.output.output == Format::Json {
        let kept: Vec<_> = removal.kept.iter().map(|kept| json!({"what": kept.what, "why": kept.why})).collect();
        return output::json(&json!({"removed": removal.removed, "kept": kept}));
    }
    let removed = match removal.removed.len() {
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    };
    output::line(&format!("removed {removed} from {}", args.cluster.namespace))?;
    for kept in &removal.kept {
        output::line(&format!("{} stays: {}", kept.what, kept.why))?;
    }
    Ok(())
}
