//! One act: the steady client keeps running while everything is watched.

use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_capture::sniff::Sniffer;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};

use super::claims::Phase;
use super::load::Load;
use super::metrics::Metrics;
use super::scene::Scene;
use crate::sample::Interval;

/// The clients print a line per second; one that is silent for so long has ended or hangs.
const SILENCE: Duration = Duration::from_secs(15);

/// The state during an act, as of the steady client's latest line.
pub(super) struct Moment {
    /// Since the act began.
    pub(super) elapsed: Duration,
    /// Canaries seen on the link since the line before.
    pub(super) canaries: u64,
    /// When snoop was first turned away in this act.
    pub(super) turned_away: Option<Duration>,
}

/// The observers.
pub(super) struct Watchers {
    pub(super) steady: Receiver<Interval>,
    pub(super) snoop: Receiver<Interval>,
    pub(super) wire: Sniffer,
}

impl Watchers {
    /// Waits for both clients' first line, and drops what was measured before.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        next(&mut self.steady, "vote-bot").await?;
        next(&mut self.snoop, "snoop").await?;
        while self.steady.try_recv().is_ok() || self.snoop.try_recv().is_ok() {}
        // The next act starts with a line, so that every line belongs to one act.
        next(&mut self.steady, "vote-bot").await.map(drop)
    }

    /// Watches until `over` says so; it is asked at each line of the steady client, so that no
    /// request is counted in two acts or none.
    pub(super) async fn act(
        &mut self,
        name: &'static str,
        scene: &Scene,
        before: &Metrics,
        mut over: impl AsyncFnMut(&Moment) -> anyhow::Result<bool>,
    ) -> anyhow::Result<(Phase, Metrics)> {
        let started = Instant::now();
        let wire = self.wire.seen();
        let (mut steady, mut snoop) = (Load::new(), Load::new());
        let mut turned_away = None;
        let mut canaries = wire.canaries;
        loop {
            tokio::select! {
                line = next(&mut self.steady, "vote-bot") => {
                    steady.add(line?);
                    let now = self.wire.seen().canaries;
                    let moment = Moment { elapsed: started.elapsed(), canaries: now - canaries, turned_away };
                    canaries = now;
                    if over(&moment).await? {
                        break;
                    }
                }
                line = next(&mut self.snoop, "snoop") => {
                    let line = line?;
                    if line.errors > 0 && turned_away.is_none() {
                        turned_away = Some(started.elapsed());
                        // Everything before, and this second, in which both may have happened.
                        snoop = Load::new();
                    } else {
                        snoop.add(line);
                    }
                }
            }
        }
        let after = scene.metrics().await?;
        let (counted, seen) = (after.since(before), self.wire.seen());
        if seen.dropped > wire.dropped {
            bail!(
                "{} packets were not looked at, so nothing can be said about what was on the link; try again on a less busy machine",
                seen.dropped - wire.dropped
            );
        }
        let mut phase = Phase {
            name: name.into(),
            plaintext_canary_hits: seen.canaries - wire.canaries,
            link_packets: seen.packets - wire.packets,
            mtls_connections: counted.mutual_tls(),
            denied: counted.denied(),
            snoop_succeeded: snoop.requests - snoop.errors,
            snoop_failed: snoop.errors,
            ..Phase::default()
        };
        steady.fill(&mut phase);
        Ok((phase, after))
    }
}

async fn next(lines: &mut Receiver<Interval>, who: &str) -> anyhow::Result<Interval> {
    timeout(SILENCE, lines.recv()).await.ok().flatten().with_context(|| {
        format!("{who} has stopped telling what it measures; see what it wrote with `leno demo --keep` and `leno logs`")
    })
}
