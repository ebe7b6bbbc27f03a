//! `leno install` and `leno upgrade`.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use leno_install::cluster::{self, Applied, ClusterError, Installer, Record, Turns};
use leno_install::{Release, Values};
use leno_kubernetes::Client;

use super::{client, rollout};
use crate::args::{ClusterArgs, ClusterUpgradeArgs, Format, InstallArgs, ObjectFormat, ValueArgs, WaitArgs};
use crate::output;

/// `leno install`.
pub(super) async fn install(args: InstallArgs, turns: &Turns) -> anyhow::Result<()> {
    if args.help_values {
        return output::bytes(leno_install::values_text().as_bytes());
    }
    let mut values = Values::of(args.profile)?;
    // With Helm somebody else does this.
    values.set("namespace.create=true")?;
    add(&mut values, &args.values)?;
    let release = Release { namespace: args.cluster.namespace.clone(), values, crds: !args.skip_crds };
    if let Some(format) = args.output {
        return print(&release, format);
    }
    let client = client(&args.cluster).await?;
    let record = Record::of(args.profile, &release.values)?;
    let applied = turns.alone(&client, async {
        cluster::refuse_other_choices(&client, &release.namespace, &record).await?;
        cluster::apply(&client, &release, &record).await
    });
    let applied = applied.await?;
    told(&applied, &client, &args.cluster)?;
    settle(&client, &args.cluster, &args.wait).await
}

/// `leno upgrade`.
pub(super) async fn upgrade(args: ClusterUpgradeArgs, format: Format, turns: &Turns) -> anyhow::Result<()> {
    let client = client(&args.cluster).await?;
    // What was chosen before is part of what is applied, so nobody may choose meanwhile.
    let applied = turns.alone(&client, change(&client, &args)).await?;
    if format == Format::Json {
        if args.wait.wait {
            rollout::settled(&client, &args.cluster.namespace, args.wait.timeout).await?;
        }
        return output::json(&serde_json::json!({
            "server": client.server(),
            "namespace": args.cluster.namespace,
            "applied": applied.objects,
            "left_alone": applied.foreign,
            "removed": applied.removed,
        }));
    }
    told(&applied, &client, &args.cluster)?;
    settle(&client, &args.cluster, &args.wait).await
}

async fn change(client: &Client, args: &ClusterUpgradeArgs) -> anyhow::Result<Applied> {
    let namespace = args.cluster.namespace.clone();
    let Some(record) = Record::read(client, &namespace).await? else {
        return Err(missing(client, namespace).await?.into());
    };
    let profile = args.profile.unwrap_or(record.profile);
    let mut values = Values::of(profile)?;
    values.set("namespace.create=true")?;
    if !args.reset_values {
        values.file(&record.values, "what was chosen at the installation")?;
    }
    add(&mut values, &args.values)?;
    let release = Release { namespace, values, crds: !args.skip_crds };
    Ok(cluster::apply(client, &release, &Record::of(profile, &release.values)?).await?)
}

/// Why there is no record of what was chosen.
async fn missing(client: &Client, namespace: String) -> anyhow::Result<ClusterError> {
    Ok(match cluster::installer(client).await? {
        Some((there, _)) if there != namespace => ClusterError::NotHere { namespace, there },
        Some((_, Installer::Helm)) => ClusterError::Helms { namespace },
        _ => ClusterError::NotInstalled { namespace },
    })
}

fn add(values: &mut Values, args: &ValueArgs) -> anyhow::Result<()> {
    for path in &args.files {
        let text = read(path).with_context(|| format!("can't read the values in {}", path.display()))?;
        values.file(&text, &path.display().to_string())?;
    }
    for set in &args.sets {
        values.set(set)?;
    }
    Ok(())
}

fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}

fn print(release: &Release, format: ObjectFormat) -> anyhow::Result<()> {
    let manifests = release.render()?;
    match format {
        ObjectFormat::Yaml => {
            let documents =
                manifests.iter().map(|manifest| format!("---\n# Source: {}\n{}", manifest.source, manifest.text));
            output::bytes(documents.collect::<String>().as_bytes())
        }
        ObjectFormat::Json => {
            let items: Vec<_> = manifests.into_iter().map(|manifest| manifest.object).collect();
            output::json(&serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}))
        }
    }
}

async fn settle(client: &Client, args: &ClusterArgs, wait: &WaitArgs) -> anyhow::Result<()> {
    if wait.wait {
        return rollout::wait(client, &args.namespace, wait.timeout).await;
    }
    output::line("it is starting; `leno status --wait` returns when it runs")
}

fn told(applied: &Applied, client: &Client, args: &ClusterArgs) -> anyhow::Result<()> {
    output::line(&format!("applied {} objects in {} at {}", applied.objects, args.namespace, client.server()))?;
    for name in &applied.foreign {
        output::line(&format!("left {name} alone: it was there before, and is as good"))?;
    }
    if !applied.removed.is_empty() {
        output::line(&format!("removed what is not needed any more: {}", applied.removed.join(", ")))?;
    }
    Ok(())
}
