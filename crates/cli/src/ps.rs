//! `leno ps`: once, watched, or of all stages.

use std::io::IsTerminal as _;

use leno_local::Listing;
use leno_local::stages::{self, State, Summary};

use crate::args::{Format, PsArgs};
use crate::stage::{ask, connect};
use crate::{listing, output};

/// `leno ps`.
pub(crate) fn run(args: &PsArgs) -> anyhow::Result<()> {
    if args.stages {
        return all(args.output.output);
    }
    if args.watch {
        return ask(watch(args));
    }
    let found = ask(async { Ok(connect(&args.stage).await?.ps().await?) })?;
    match args.output.output {
        Format::Json => output::json(&found),
        Format::Text => output::line(&listing::text(&found)),
    }
}

/// Home, then everything below is erased: what is redrawn does not flicker.
const REDRAW: &str = "\x1b[H\x1b[J";
const CLEAR: &str = "\x1b[2J";

/// Shows each change: on a terminal in place, else what changed, or as JSON one listing a line.
async fn watch(args: &PsArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.stage).await?;
    client.watch().await?;
    let terminal = std::io::stdout().is_terminal();
    let mut before: Option<Listing> = None;
    while let Some(now) = client.next().await? {
        match args.output.output {
            Format::Json => output::line(&serde_json::to_string(&now)?)?,
            Format::Text if terminal => {
                let clear = if before.is_none() { CLEAR } else { "" };
                output::line(&format!("{clear}{REDRAW}{}", listing::text(&now)))?;
            }
            Format::Text => match &before {
                None => output::line(&listing::text(&now))?,
                Some(before) => {
                    for line in listing::changes(before, &now) {
                        output::line(&line)?;
                    }
                }
            },
        }
        before = Some(now);
    }
    eprintln!("the stage has ended");
    Ok(())
}

fn all(format: Format) -> anyhow::Result<()> {
    let found = ask(async { Ok(stages::list().await?) })?;
    match format {
        Format::Json => output::json(&serde_json::json!({ "stages": found })),
        Format::Text => output::line(&table(&found)),
    }
}

fn table(all: &[Summary]) -> String {
    if all.is_empty() {
        return "no stage runs; `leno up -f PATH` starts one".to_owned();
    }
    let rows: Vec<_> = all
        .iter()
        .map(|stage| {
            let state = match stage.state {
                State::Ready => "ready".to_owned(),
                State::NotReady => "not ready".to_owned(),
                State::Busy => "starting or ending".to_owned(),
                State::Dead => format!("dead; clean up with `leno down --name {}`", stage.name),
            };
            let pid = stage.supervisor.map(|pid| pid.to_string()).unwrap_or_default();
            let pods = format!("{}/{}", stage.settled, stage.pods);
            vec![stage.name.clone(), pid, stage.nodes.to_string(), pods, state]
        })
        .collect();
    output::table(&["STAGE", "PID", "NODES", "PODS", "STATE"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_a_row_and_a_dead_one_says_what_to_do() {
        let of = |name: &str, state, supervisor| Summary {
            name: name.to_owned(),
            state,
            supervisor,
            nodes: 2,
            pods: 3,
            settled: 1,
        };
        let text = table(&[of("default", State::NotReady, Some(7)), of("old", State::Dead, None)]);
        let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[1], "default 7 2 1/3 not ready");
        assert!(rows[2].ends_with("dead; clean up with `leno down --name old`"), "{text}");
        assert!(table(&[]).contains("leno up"));
    }
}
