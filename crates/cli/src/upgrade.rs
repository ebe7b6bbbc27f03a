//! `leno upgrade`: the proxies of a stage's nodes are exchanged for another program, one node after the other.

use anyhow::Context as _;

use crate::args::{Format, UpgradeArgs};
use crate::output;
use crate::stage::{ask, connect};

pub(crate) fn run(args: &UpgradeArgs) -> anyhow::Result<()> {
    let mut wanted = Vec::new();
    for (node, program) in &args.node_proxy {
        // Found now and from here: the stage starts it elsewhere, again and again.
        let found = program
            .canonicalize()
            .with_context(|| format!("--node-proxy: there is no program {} for {node}", program.display()))?;
        wanted.push((node, found));
    }
    let mut told = Vec::new();
    let outcome = ask(async {
        for (node, program) in &wanted {
            // A connection each: one that waited too long for an answer can't be asked again.
            let upgraded = connect(&args.stage).await?.upgrade(node, program.clone()).await?;
            if args.output.output == Format::Text {
                output::line(&format!(
                    "{node}: {} serves (pid {}); {} drains",
                    program.display(),
                    upgraded.pid,
                    upgraded.from.display()
                ))?;
            }
            told.push(serde_json::json!({
                "node": node,
                "program": program,
                "pid": upgraded.pid,
                "previous_program": upgraded.from,
            }));
        }
        Ok(())
    });
    if args.output.output == Format::Json {
        output::json(&serde_json::json!({ "upgraded": told }))?;
    }
    let left: Vec<&str> = wanted.iter().skip(told.len() + 1).map(|(node, _)| node.as_str()).collect();
    if left.is_empty() {
        return outcome;
    }
    outcome.with_context(|| format!("the upgrade stops here; {} keep the proxies that they have", left.join(", ")))
}
