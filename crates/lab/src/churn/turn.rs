//! One control plane in one round, phase by phase.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::audit::audit;
use super::crowd::Crowd;
use super::phase::{Kind, Phase, Shape};
use super::proxy;
use super::result::PhaseResult;
use super::sample::Sampled;
use super::world::{Made, World};
use crate::Error;

/// The limit for everything awaited. A control plane that needs longer does not work.
const PATIENCE: Duration = Duration::from_secs(900);
/// The limit for all proxies to hold the mesh after they have seen every change. Some removals come later.
const SETTLED: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(200);
/// The pause before memory is read, so that temporary memory is given back.
const REST: Duration = Duration::from_secs(2);
/// Without proxies, changes follow each other at this distance, so that each is published by itself.
const APART: Duration = Duration::from_millis(50);
/// A figure needs at least this many changes.
const FEWEST: usize = 3;
/// Changes that proxies miss while they are disconnected.
const MISSED: usize = 10;
/// How long to wait for the operator's signal after a failure, because the signal may be its cause.
const ECHO: Duration = Duration::from_millis(200);
/// A control plane that is ready has come to rest when it used less than this part of a core for this time.
const AT_REST: f64 = 0.05;
const RESTING: Duration = Duration::from_millis(500);
/// For that: what it still does then counts for what comes next.
const COMES_TO_REST: Duration = Duration::from_secs(60);

/// One turn: a control plane in one round.
pub(crate) struct Turn {
    /// Its name in this run.
    pub(crate) subject: String,
    /// Round, from 1.
    pub(crate) round: usize,
    /// The mesh.
    pub(crate) shape: Shape,
    /// How long the changes go on.
    pub(crate) seconds: f64,
    /// All phases of the scenario, in order.
    pub(crate) all: &'static [Phase],
    /// The phases that are reported. Phases that these require run as well.
    pub(crate) phases: Vec<Phase>,
}

/// Progress of a turn.
pub(crate) enum News<'a> {
    /// The operator has asked for the end.
    Stops,
    /// A phase begins.
    Begins(Phase),
    /// A phase that is reported has ended.
    Done(&'a PhaseResult),
}

impl Turn {
    /// Runs it. `begun` was taken before `world` was started. `world` is gone when this returns or is dropped.
    ///
    /// # Errors
    /// When the control plane does not do what it should: it ends, closes a proxy's connection, or leaves a proxy with
    /// something other than the mesh.
    pub(crate) async fn run(
        &self,
        begun: Sampled,
        world: impl World,
        mut stop: watch::Receiver<bool>,
        tell: &mut dyn FnMut(News<'_>),
    ) -> Result<Vec<PhaseResult>, Error> {
        let crowd = Crowd::new(Shape { proxies: 0, ..self.shape }, &world.inventory());
        let death = world.process().death();
        let mut running = Running { turn: self, world, crowd, results: Vec::new() };
        let mut outcome = tokio::select! {
            outcome = running.phases(begun, tell) => outcome,
            death = death => Err(death),
            _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
        };
        // Ctrl-C reaches the control plane, too, and its end may be noticed before the signal.
        if outcome.is_err() && matches!(tokio::time::timeout(ECHO, stop.wait_for(|stop| *stop)).await, Ok(Ok(_))) {
            outcome = Err(Error::Interrupted);
        }
        if matches!(outcome, Err(Error::Interrupted)) {
            tell(News::Stops);
        }
        let Running { world, mut crowd, results, .. } = running;
        crowd.leave().await;
        world.into_process().stop().await;
        outcome.map(|()| results)
    }
}

/// A turn in progress.
struct Running<'a, W> {
    turn: &'a Turn,
    world: W,
    crowd: Crowd,
    results: Vec<PhaseResult>,
}

impl<W: World> Running<'_, W> {
    async fn phases(&mut self, begun: Sampled, tell: &mut dyn FnMut(News<'_>)) -> Result<(), Error> {
        let phases = &self.turn.phases;
        let last = phases.last().copied();
        let proxies = phases.iter().any(|phase| *phase == Phase::FirstSync || phase.needs_proxies());
        let mut begun = Some(begun);
        for &phase in self.turn.all {
            let is_wanted = phases.contains(&phase);
            let must = phase.is_first() || phase == Phase::FirstSync && proxies;
            if !is_wanted && !must {
                continue;
            }
            if !phase.is_first() {
                tell(News::Begins(phase));
            }
            let begun = match begun.take() {
                Some(begun) => begun,
                None => Sampled::now(self.world.process(), &self.crowd)?,
            };
            let result = self.phase(phase, begun).await?;
            if is_wanted {
                tell(News::Done(&result));
                self.results.push(result);
            }
            if last == Some(phase) {
                break;
            }
        }
        Ok(())
    }

    /// One phase, from beginning to end.
    async fn phase(&mut self, phase: Phase, begun: Sampled) -> Result<PhaseResult, Error> {
        let (mut made, mut begun, mut ready) = (Made::default(), begun, None);
        match phase {
            Phase::Start => self.world.begin().await?,
            Phase::Ready => {
                self.world.begin().await?;
                ready = Some(Instant::now());
                self.comes_to_rest().await?;
            }
            Phase::Alone(kind) => made = self.alone(kind).await?,
            Phase::FirstSync => {
                self.crowd = Crowd::new(self.turn.shape, &self.world.inventory());
                begun.received = (0, 0);
                self.crowd.come(&self.world, None, 0, PATIENCE).await?;
            }
            Phase::Idle => self.crowd.rest(&self.world, self.time()).await?,
            Phase::Churn(kind) if kind.is_at_fixed_times() => made = self.at_fixed_times(kind).await?,
            Phase::Churn(kind) => made = self.one_by_one(kind).await?,
            Phase::Reconnect => (made, begun) = self.reconnect().await?,
        }
        let ended = Sampled::now(self.world.process(), &self.crowd)?;
        let latency = self.crowd.watched().latency().finish();
        let is_coming = matches!(phase, Phase::FirstSync | Phase::Reconnect);
        let is_churn = matches!(phase, Phase::Churn(_));
        self.audit().await?;
        tokio::time::sleep(REST.min(self.time())).await;
        let after = self.world.process().memory()?;
        let cpu = ended.plane.since(&begun.plane);
        Ok(PhaseResult {
            step: phase.name().to_owned(),
            subject: self.turn.subject.clone(),
            round: self.turn.round,
            started: begun.time,
            shape: self.turn.shape,
            seconds: (ready.unwrap_or(ended.at) - begun.at).as_secs_f64(),
            changes: made.changes,
            touched: made.touched,
            proxies: self.crowd.each().count(),
            cpu,
            lab_cpu: ended.lab.since(&begun.lab).since(&cpu),
            before: begun.memory,
            after,
            bytes: ended.received.0 - begun.received.0,
            responses: ended.received.1 - begun.received.1,
            again: if is_coming { self.crowd.again() } else { 0 },
            latency: is_churn.then_some(latency),
            machine: ended.machine.since(&begun.machine),
            others_seconds: (ended.others - begun.others).max(0.0),
        })
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.turn.seconds)
    }

    /// Waits until it has done what it does after it is ready.
    async fn comes_to_rest(&self) -> Result<(), Error> {
        let (process, begun) = (self.world.process(), Instant::now());
        let mut before = process.cpu()?;
        while begun.elapsed() < COMES_TO_REST {
            tokio::time::sleep(RESTING).await;
            let now = process.cpu()?;
            if now.since(&before).seconds() < AT_REST * RESTING.as_secs_f64() {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// Makes changes one after the other, while no proxy is connected.
    async fn alone(&mut self, kind: Kind) -> Result<Made, Error> {
        let begun = Instant::now();
        let mut made = Made::default();
        while made.changes < FEWEST || begun.elapsed() < self.time() {
            let next = tokio::time::Instant::now() + APART;
            made += self.world.change_and_publish(kind, self.crowd.watched()).await?;
            tokio::time::sleep_until(next).await;
        }
        Ok(made)
    }

    /// Makes changes at a fixed rate, however long proxies take to see them.
    async fn at_fixed_times(&mut self, kind: Kind) -> Result<Made, Error> {
        let mut made = Made::default();
        self.crowd.watch(self.world.next());
        let apart = Duration::from_secs_f64(1.0 / self.turn.shape.changes);
        let begun = Instant::now();
        loop {
            let due = apart.mul_f64(made.changes as f64);
            if made.changes >= FEWEST && due >= self.time() {
                break;
            }
            self.crowd.rest(&self.world, due.saturating_sub(begun.elapsed())).await?;
            made += self.world.change(kind, self.crowd.watched()).await?;
        }
        self.crowd.see(&self.world, made.changes, PATIENCE).await?;
        // The last change also gets its full interval.
        let whole = apart.mul_f64(made.changes as f64);
        self.crowd.rest(&self.world, whole.saturating_sub(begun.elapsed())).await?;
        Ok(made)
    }

    /// Makes the next change when all proxies have seen the one before, but not before its fixed time.
    async fn one_by_one(&mut self, kind: Kind) -> Result<Made, Error> {
        let mut made = Made::default();
        self.crowd.watch(self.world.next());
        let apart = Duration::from_secs_f64(1.0 / self.turn.shape.changes);
        let begun = Instant::now();
        while made.changes < FEWEST || begun.elapsed() < self.time() {
            let next = Instant::now() + apart;
            made += self.world.change(kind, self.crowd.watched()).await?;
            self.crowd.see(&self.world, made.changes, PATIENCE).await?;
            self.crowd.rest(&self.world, next.saturating_duration_since(Instant::now())).await?;
        }
        Ok(made)
    }

    /// All proxies disconnect, miss some changes, and connect again. The measurement begins when they connect.
    async fn reconnect(&mut self) -> Result<(Made, Sampled), Error> {
        let told = {
            let witness = self.crowd.each().next();
            let held: Vec<_> = witness.iter().flat_map(|held| held.kept()).collect();
            proxy::told(held.iter().map(|kept| (kept.name.as_str(), kept.version.as_str())))
        };
        self.crowd.leave().await;
        self.crowd.watch(self.world.next());
        let mut made = Made::default();
        for _ in 0..MISSED {
            made += self.world.change_and_publish(Kind::ReplacePod, self.crowd.watched()).await?;
        }
        tokio::time::sleep(REST.min(self.time())).await;
        let begun = Sampled { received: (0, 0), ..Sampled::now(self.world.process(), &self.crowd)? };
        self.crowd.come(&self.world, Some(told), MISSED, PATIENCE).await?;
        Ok((made, begun))
    }

    /// Waits until every proxy holds the mesh as it is.
    async fn audit(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            match audit(self.crowd.each(), &self.world.inventory()) {
                Ok(()) => return Ok(()),
                Err(reason) if begun.elapsed() > SETTLED => return Err(self.world.process().broken(reason)),
                Err(_) => self.crowd.rest(&self.world, LOOK).await?,
            }
        }
    }
}
