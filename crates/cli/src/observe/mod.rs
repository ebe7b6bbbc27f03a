//! `leno observe`: who talks to whom, as the node proxies tell it.
//!
//! ```text
//!  stream   reading what they tell, all at once
//!  ledger   the words of both proxies of a connection, put together
//!  filter   which connections are shown
//!  rows     one connection as a row; map: one line for each pair, with rates
//!  follow   going on
//! ```

mod filter;
mod follow;
mod ledger;
mod map;
mod notes;
mod rows;
mod stream;
#[cfg(test)]
mod testing;

use std::io::{IsTerminal as _, stdout};
use std::time::Instant;

use leno_telemetry::observe::Event;
use serde_json::json;

use crate::args::{Format, ObserveArgs};
use crate::output::{self, Paint, table};
use crate::stage::ask;
use crate::target::{Target, chosen_proxies};
use ledger::{Ledger, Shown};
use notes::Notes;
use stream::What;

/// `leno observe`.
pub(crate) fn run(args: &ObserveArgs) -> anyhow::Result<()> {
    ask(async { observe(&Target::of(&args.target).await?, args).await })
}

async fn observe(target: &Target, args: &ObserveArgs) -> anyhow::Result<()> {
    let nodes = chosen_proxies(target, &args.filter.node).await?;
    let once = !args.follow && (args.output.output == Format::Json);
    if !once {
        target.announce();
    }
    if args.map {
        let live = args.follow || (stdout().is_terminal() && args.output.output == Format::Text);
        follow::map(target, &nodes, args, (!live).then_some(target)).await
    } else if args.follow {
        follow::rows(target, &nodes, args).await
    } else {
        now(target, &nodes, args).await
    }
}

/// What is open and what ended lately, once.
async fn now(target: &Target, nodes: &[String], args: &ObserveArgs) -> anyhow::Result<()> {
    let query = args.since.map(|since| format!("since={}", since.as_secs())).unwrap_or_default();
    let mut told = stream::read(target, nodes, &query, false);
    let mut ledger = Ledger::default();
    let mut notes = Notes::new(nodes);
    let heard = Instant::now();
    while let Some(told) = told.recv().await {
        match told.what {
            What::Event(Event::Open(connection)) => drop(ledger.note(&told.node, *connection, false, heard)),
            What::Event(Event::Ended(connection)) => drop(ledger.note(&told.node, *connection, true, heard)),
            other => notes.note(&told.node, other),
        }
    }
    notes.anybody()?;
    let mut all: Vec<Shown> = ledger.entries().filter_map(|entry| entry.shown()).collect();
    all.retain(|shown| args.filter.fits(&shown.connection));
    all.sort_by(|a, b| a.connection.time.cmp(&b.connection.time));
    match args.output.output {
        Format::Json => output::json(&json!({ "of": target.json(), "connections": all, "nodes": notes.json() })),
        Format::Text => {
            let printed = if all.is_empty() {
                "no connections".to_owned()
            } else {
                let rows: Vec<_> = all.iter().map(|shown| rows::cells(shown, Paint::stdout())).collect();
                table(&rows::HEADING, &rows)
            };
            output::line(&printed)?;
            notes.print();
            Ok(())
        }
    }
}
