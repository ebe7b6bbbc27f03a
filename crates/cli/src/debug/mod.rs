//! `leno debug collect`: one archive with what a report about a problem needs.
//!
//! ```text
//!  archive   the file, and what could not be read
//!  redact    what never gets into it
//!  cluster   what there is of an installation in a cluster
//!  stage     what there is of a stage
//! ```

mod archive;
mod cluster;
mod redact;
mod stage;

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::args::{CollectArgs, DebugCommand};
use crate::output;
use crate::target::Target;
use archive::Archive;

/// This program.
pub(crate) struct Build {
    pub(crate) commit: Option<&'static str>,
    pub(crate) profile: Option<&'static str>,
}

/// `leno debug`.
pub(crate) async fn run(command: DebugCommand, build: &Build) -> anyhow::Result<()> {
    let DebugCommand::Collect(args) = command;
    let target = Target::installed(&args.installed).await?;
    target.announce();
    let name = name();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let mut archive = Archive::create(&path, name)?;
    collect(&mut archive, &target, &args, build).await?;
    let files = archive.files();
    let errors = archive.finish()?;
    output::line(&match errors {
        0 => format!("wrote {} ({files} files)", path.display()),
        _ => {
            format!("wrote {} ({files} files); {errors} things could not be read, see errors.txt in it", path.display())
        }
    })
}

async fn collect(archive: &mut Archive, target: &Target, args: &CollectArgs, build: &Build) -> anyhow::Result<()> {
    let version = json!({
        "of": target.json(), "version": env!("CARGO_PKG_VERSION"), "commit": build.commit, "profile": build.profile,
        "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
    });
    archive.json("leno.json", &version)?;
    match target {
        Target::Stage(stage) => stage::collect(archive, stage, args).await,
        Target::Cluster(nodes) => cluster::collect(archive, nodes, args).await,
    }
}

fn name() -> String {
    let now = OffsetDateTime::from(SystemTime::now());
    let format = format_description!("[year][month][day]-[hour][minute][second]");
    format!("leno-debug-{}", now.format(&format).unwrap_or_default())
}

#[cfg(test)]
#[path = "debug_tests.rs"]
mod tests;
