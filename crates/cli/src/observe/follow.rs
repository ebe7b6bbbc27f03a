//! Going on with what happens: rows of connections, or the map of pairs.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, stdout};
use std::time::{Duration, Instant};

use leno_telemetry::observe::Event;
use tokio::time::MissedTickBehavior;

use super::ledger::{Ledger, Shown};
use super::map::{self, Map};
use super::notes::Notes;
use super::rows;
use super::stream::{self, Told, What};
use crate::args::{Format, ObserveArgs};
use crate::output::{self, Paint};
use crate::target::{Source, Target};

/// How often what is due is printed.
const TICK: Duration = Duration::from_millis(250);

/// How old a connection is when it is shown as open: most are over by then, and shown once.
const LASTS: Duration = Duration::from_secs(1);

/// How long it is waited for a node's first words. A pod that has ended meanwhile never says any.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is heard from all nodes.
struct Heard {
    ledger: Ledger,
    notes: Notes,
    /// Nodes that have yet to say what there was before.
    awaited: BTreeSet<String>,
    /// Nodes whose proxies may yet tell something.
    live: BTreeSet<String>,
}

impl Heard {
    fn new(nodes: &[String]) -> Self {
        let all: BTreeSet<_> = nodes.iter().cloned().collect();
        Self { ledger: Ledger::default(), notes: Notes::new(nodes), awaited: all.clone(), live: all }
    }

    /// Waits no longer for the first words of some nodes, if others have said theirs. Says whether it did.
    fn lose_patience(&mut self) -> bool {
        if self.awaited.is_empty() || self.awaited.is_superset(&self.live) {
            return false;
        }
        for node in std::mem::take(&mut self.awaited) {
            eprintln!(
                "{node}: it has not answered for {} s; what it carries is shown once it does",
                PATIENCE.as_secs()
            );
        }
        true
    }

    /// What was carried before does not count. Returns when the first moment ends, which is `each` long.
    fn count_from_here(&mut self, each: Duration) -> tokio::time::Instant {
        for entry in self.ledger.entries() {
            let Some(shown) = entry.shown() else { continue };
            entry.announced = true;
            entry.counted = [shown.connection.bytes_sent, shown.connection.bytes_received];
        }
        tokio::time::Instant::now() + each
    }

    /// Takes in what a node tells. Says whether what was before is now known of all nodes.
    fn take(&mut self, told: Told) -> anyhow::Result<bool> {
        let Told { node, what } = told;
        let before = self.awaited.len();
        match what {
            What::Event(Event::Open(connection)) => drop(self.ledger.note(&node, *connection, false, Instant::now())),
            What::Event(Event::Ended(connection)) => drop(self.ledger.note(&node, *connection, true, Instant::now())),
            What::Event(Event::Now) => drop(self.awaited.remove(&node)),
            What::Event(Event::Missed { count }) => {
                eprintln!("{node}: {count} connections are not shown: there were too many at once");
            }
            What::Lost(reason) => {
                eprintln!("{node}: {reason}; it is looked for again until it answers");
                self.ledger.gone(&node);
            }
            What::Again => eprintln!("{node}: its proxy answers again"),
            What::NoStream(reason) => {
                eprintln!("{node}: {reason}");
                self.awaited.remove(&node);
                self.live.remove(&node);
                self.ledger.gone(&node);
                self.notes.note(&node, What::NoStream(reason));
                self.notes.anybody()?;
            }
            other => self.notes.note(&node, other),
        }
        Ok(before > 0 && self.awaited.is_empty())
    }
}

/// Connections as they last or end.
pub(super) async fn rows<S: Source>(source: &S, nodes: &[String], args: &ObserveArgs) -> anyhow::Result<()> {
    let since = args.since.map_or(0, |since| since.as_secs());
    let mut told = stream::read(source, nodes, &format!("follow=true&since={since}"), true);
    let mut heard = Heard::new(nodes);
    let mut printer = Printer::new(args.output.output);
    let begun = Instant::now();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let begins = tokio::select! {
            told = told.recv() => {
                let Some(told) = told else { return Ok(()) };
                if !heard.take(told)? {
                    continue;
                }
                true
            }
            _ = tick.tick() => begun.elapsed() >= PATIENCE && heard.lose_patience(),
        };
        if heard.awaited.is_empty() {
            due(&mut heard, &mut printer, args, begins)?;
        }
    }
}

/// Prints what is due: at the beginning all that is open, then what has lasted or ended.
fn due(heard: &mut Heard, printer: &mut Printer, args: &ObserveArgs, begins: bool) -> anyhow::Result<()> {
    let now = Instant::now();
    let mut due: Vec<Shown> = heard.ledger.take_ended(now).iter().filter_map(|entry| entry.shown()).collect();
    for entry in heard.ledger.entries() {
        if entry.is_open() && !entry.announced && (begins || now.duration_since(entry.since) >= LASTS) {
            entry.announced = true;
            due.extend(entry.shown());
        }
    }
    due.retain(|shown| args.filter.fits(&shown.connection));
    due.sort_by(|a, b| a.connection.time.cmp(&b.connection.time));
    printer.print(&due)
}

/// Prints rows as they come, in columns that grow with what is in them.
struct Printer {
    format: Format,
    paint: Paint,
    widths: [usize; rows::HEADING.len()],
    headed: bool,
}

impl Printer {
    fn new(format: Format) -> Self {
        // Room for what is usual, so that few rows are out of line.
        let widths = [8, 5, 36, 36, 20, 12, 8, 8, 7, 0];
        Self { format, paint: Paint::stdout(), widths, headed: false }
    }

    fn print(&mut self, shown: &[Shown]) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.format == Format::Text && !std::mem::replace(&mut self.headed, true) {
            text.push_str(&self.row(&rows::HEADING.map(str::to_owned)));
        }
        for shown in shown {
            match self.format {
                Format::Json => {
                    text.push_str(&serde_json::to_string(shown)?);
                    text.push('\n');
                }
                Format::Text => text.push_str(&self.row(&rows::cells(shown, self.paint))),
            }
        }
        if text.is_empty() { Ok(()) } else { output::bytes(text.as_bytes()) }
    }

    fn row(&mut self, cells: &[String]) -> String {
        let mut text = String::new();
        let last = self.widths.len() - 1;
        for (at, (cell, width)) in cells.iter().zip(&mut self.widths).enumerate() {
            text.push_str(cell);
            if at < last {
                let length = cell.chars().count();
                *width = length.max(*width);
                text.extend(std::iter::repeat_n(' ', *width - length + 3));
            }
        }
        text.push('\n');
        text
    }
}

/// One line for each pair, with rates: again and again, or `once`, of this stage or cluster.
pub(super) async fn map<S: Source>(
    source: &S,
    nodes: &[String],
    args: &ObserveArgs,
    once: Option<&Target>,
) -> anyhow::Result<()> {
    let live = once.is_none();
    let window = Duration::from_secs(args.window);
    let terminal = live && stdout().is_terminal() && args.output.output == Format::Text;
    // A terminal shows the last moments anew each second; what is read by programs tells each moment once.
    let (moments, each) = if terminal { (args.window as usize, Duration::from_secs(1)) } else { (1, window) };
    let query = format!("follow=true&since=0&every={}", (each / 2).min(Duration::from_secs(1)).as_millis());
    let mut told = stream::read(source, nodes, &query, true);
    let mut heard = Heard::new(nodes);
    let mut map = Map::new(moments, each.as_secs_f64());
    // From the time on when all nodes have said what there was before.
    let mut next: Option<tokio::time::Instant> = None;
    let mut patience = tokio::time::interval_at(tokio::time::Instant::now() + PATIENCE, PATIENCE);
    loop {
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            told = told.recv() => {
                let Some(told) = told else { return Ok(()) };
                if heard.take(told)? {
                    next = Some(heard.count_from_here(each));
                }
                continue;
            }
            _ = patience.tick(), if next.is_none() => {
                if heard.lose_patience() {
                    next = Some(heard.count_from_here(each));
                } else if !live {
                    anyhow::bail!("no node's proxy has answered for {} s; `leno check` may say why", PATIENCE.as_secs());
                }
                continue;
            }
            () = due => {}
        }
        let mut count = |entry: &mut super::ledger::Entry| {
            if let Some(shown) = entry.shown().filter(|shown| args.filter.fits(&shown.connection)) {
                map.count(entry, &shown);
            }
        };
        heard.ledger.take_ended(Instant::now()).iter_mut().for_each(&mut count);
        heard.ledger.entries().filter(|entry| entry.is_open()).for_each(&mut count);
        let lines = map.lines();
        match args.output.output {
            Format::Json => match once {
                None => output::line(&serde_json::to_string(&lines)?)?,
                Some(target) => {
                    let nodes = heard.notes.json();
                    output::json(&serde_json::json!({ "of": target.json(), "pairs": lines, "nodes": nodes }))?;
                }
            },
            Format::Text if terminal => output::bytes(screen(&map::text(&lines, Paint::stdout())).as_bytes())?,
            Format::Text if lines.is_empty() => output::line("no connections")?,
            Format::Text => output::line(&map::text(&lines, Paint::stdout()))?,
        }
        if !live {
            return Ok(());
        }
        next = next.map(|at| (at + each).max(tokio::time::Instant::now()));
    }
}

/// A picture that takes the place of the last one: from the top of the terminal, with what was below wiped out, and no
/// larger than the terminal, which would scroll.
fn screen(text: &str) -> String {
    let size = terminal_size::terminal_size();
    let (width, height) = size.map_or((usize::MAX, usize::MAX), |(width, height)| (width.0.into(), height.0.into()));
    let lines: Vec<_> = text.lines().collect();
    let room = height.saturating_sub(2);
    let mut picture = "\x1b[H\x1b[J".to_owned();
    for line in lines.iter().take(room) {
        // Colours are in the last column only; a line that is cut there has none, or ends it.
        let cut: String = line.chars().take(width).collect();
        picture.push_str(&cut);
        picture.push_str("\x1b[0m\n");
    }
    if lines.len() > room {
        picture.push_str(&format!("… and {} more; narrow it with --namespace or --to\n", lines.len() - room));
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_says_nothing_is_not_waited_for_for_ever() {
        let mut heard = Heard::new(&["a".to_owned(), "shop/waypoint-1".to_owned()]);
        assert!(!heard.lose_patience(), "nobody has said anything yet");
        let now = Told { node: "a".to_owned(), what: What::Event(Event::Now) };
        assert!(!heard.take(now).unwrap(), "the other is awaited");
        assert!(heard.lose_patience() && heard.awaited.is_empty());
        assert!(!heard.lose_patience(), "it is told once");
    }
}
