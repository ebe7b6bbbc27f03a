//! One control plane in one round: phase after phase.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::audit::audit;
use super::crowd::Crowd;
use super::mesh::{Change, Mesh};
use super::phase::{Kind, Phase, Shape};
use super::plane::{Plane, PlaneMemory};
use super::proxy;
use crate::Error;
use crate::load::Latency;
use crate::measure::{self, Cpu, MachineCpu};

/// For whatever is waited for: a control plane that needs longer for it does not work.
const PATIENCE: Duration = Duration::from_secs(900);
/// For all proxies to hold what the mesh is, after they have seen every change: some removals come later.
const SETTLED: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(200);
/// Before memory is looked at, for what was needed for a while to be given back.
const REST: Duration = Duration::from_secs(2);
/// Changes without a proxy follow each other at this distance: each is published by itself.
const APART: Duration = Duration::from_millis(50);
/// Changes that a figure takes at least.
const FEWEST: usize = 3;
/// Changes that proxies miss while they are away.
const MISSED: usize = 10;
/// For the operator's signal, when something has failed that it may have ended.
const ECHO: Duration = Duration::from_millis(200);
/// Bytes of the feed that are written at a time.
const PART: usize = 1 << 18;

/// Everything one phase found, raw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Step.
    pub step: String,
    /// Subject.
    pub subject: String,
    /// Round, from 1.
    pub round: usize,
    /// When the phase began: RFC 3339, UTC. Empty in reports of versions that did not keep it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// The mesh and its proxies.
    pub shape: Shape,
    /// Seconds over which processor time was taken.
    pub seconds: f64,
    /// Changes in this time.
    pub changes: usize,
    /// Pods that they touched, together.
    pub touched: usize,
    /// Proxies that were connected at its end.
    pub proxies: usize,
    /// Processor time of the control plane.
    pub cpu: Cpu,
    /// Processor time of the lab, which is that of the proxies.
    pub lab_cpu: Cpu,
    /// The control plane's memory before.
    pub before: PlaneMemory,
    /// The control plane's memory afterwards, when it has come to rest.
    pub after: PlaneMemory,
    /// Bytes of discovery that proxies were sent, without what gRPC's transport adds.
    pub bytes: u64,
    /// Responses that proxies were sent.
    pub responses: u64,
    /// How often proxies were sent away, or got no answer, before they were in sync, and came again.
    #[serde(default)]
    pub again: u64,
    /// From when a change was about to be fed until a proxy had all of it, for every change and proxy.
    pub latency: Option<Latency>,
    /// The use of the whole machine.
    pub machine: MachineCpu,
    /// The part of it that programs outside the lab used, seconds.
    pub others_seconds: f64,
}

/// One turn: a control plane in one round.
pub(crate) struct Turn<'a> {
    /// The program that is the control plane.
    pub(crate) program: &'a Path,
    /// Its name in this run.
    pub(crate) subject: String,
    /// Round, from 1.
    pub(crate) round: usize,
    /// The mesh.
    pub(crate) shape: Shape,
    /// How long changes go on.
    pub(crate) seconds: f64,
    /// The phases that are reported. Those that must come before are run as well.
    pub(crate) phases: Vec<Phase>,
}

/// Progress of a turn.
pub(crate) enum News<'a> {
    /// The operator has had enough.
    Stops,
    /// A phase begins.
    Begins(Phase),
    /// A phase that is reported has ended.
    Done(&'a PhaseResult),
}

impl Turn<'_> {
    /// Runs it. Whatever it started is gone when it returns or is dropped.
    ///
    /// # Errors
    /// When the control plane does not do what it should: it ends, loses a proxy, or leaves one with something else than
    /// the mesh.
    pub(crate) async fn run(
        &self,
        mut stop: watch::Receiver<bool>,
        tell: &mut dyn FnMut(News<'_>),
    ) -> Result<Vec<PhaseResult>, Error> {
        tell(News::Begins(Phase::Start));
        let begun = Sampled::start()?;
        let plane = Plane::start(self.program, &self.subject, self.shape.proxies).await?;
        let mesh = Mesh::new(self.shape);
        let crowd = Crowd::new(Shape { proxies: 0, ..self.shape }, &mesh);
        let death = plane.death();
        let mut running = Running { turn: self, plane, mesh, crowd, results: Vec::new() };
        let mut outcome = tokio::select! {
            outcome = running.phases(begun, tell) => outcome,
            death = death => Err(death),
            _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
        };
        // Ctrl-C reaches the control plane, too, and its end may be the first to be noticed.
        if outcome.is_err() && matches!(tokio::time::timeout(ECHO, stop.wait_for(|stop| *stop)).await, Ok(Ok(_))) {
            outcome = Err(Error::Interrupted);
        }
        if matches!(outcome, Err(Error::Interrupted)) {
            tell(News::Stops);
        }
        let Running { plane, mut crowd, results, .. } = running;
        crowd.leave().await;
        plane.stop().await;
        outcome.map(|()| results)
    }
}

/// A turn under way.
struct Running<'a> {
    turn: &'a Turn<'a>,
    plane: Plane,
    mesh: Mesh,
    crowd: Crowd,
    results: Vec<PhaseResult>,
}

/// The state when a phase began.
struct Sampled {
    at: Instant,
    /// `at`, RFC 3339, UTC.
    time: String,
    plane: Cpu,
    /// The lab with its children.
    lab: Cpu,
    machine: MachineCpu,
    others: f64,
    memory: PlaneMemory,
    received: (u64, u64),
}

impl Sampled {
    /// Before the control plane runs.
    fn start() -> Result<Self, Error> {
        let own = std::process::id().cast_signed();
        let what = "cannot read /proc";
        Ok(Self {
            at: Instant::now(),
            time: measure::now(),
            plane: Cpu::default(),
            lab: measure::cpu(own).map_err(Error::io(what))?,
            machine: MachineCpu::now().map_err(Error::io(what))?,
            others: measure::others(own).map_err(Error::io(what))?,
            memory: PlaneMemory::default(),
            received: (0, 0),
        })
    }

    /// Now.
    fn now(plane: &Plane, crowd: &Crowd) -> Result<Self, Error> {
        Ok(Self { plane: plane.cpu()?, memory: plane.memory()?, received: crowd.received(), ..Self::start()? })
    }
}

/// Changes that were made.
#[derive(Debug, Clone, Copy, Default)]
struct Made {
    changes: usize,
    touched: usize,
}

impl Made {
    fn add(&mut self, change: &Change) {
        self.changes += 1;
        self.touched += change.pods as usize;
    }
}

impl Running<'_> {
    async fn phases(&mut self, begun: Sampled, tell: &mut dyn FnMut(News<'_>)) -> Result<(), Error> {
        let phases = &self.turn.phases;
        let last = phases.last().copied();
        let proxies = phases.iter().any(|phase| *phase == Phase::FirstSync || phase.needs_proxies());
        let mut begun = Some(begun);
        for phase in Phase::ALL {
            let is_wanted = phases.contains(&phase);
            let must = phase == Phase::Start || phase == Phase::FirstSync && proxies;
            if !is_wanted && !must {
                continue;
            }
            if phase != Phase::Start {
                tell(News::Begins(phase));
            }
            let begun = match begun.take() {
                Some(begun) => begun,
                None => Sampled::now(&self.plane, &self.crowd)?,
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
        let (mut made, mut begun) = (Made::default(), begun);
        match phase {
            Phase::Start => self.start().await?,
            Phase::Alone(kind) => made = self.alone(kind).await?,
            Phase::FirstSync => {
                self.crowd = Crowd::new(self.turn.shape, &self.mesh);
                begun.received = (0, 0);
                self.crowd.come(&self.plane, None, 0, PATIENCE).await?;
            }
            Phase::Idle => self.crowd.rest(&self.plane, self.time()).await?,
            Phase::Churn(kind) if kind.is_single() => made = self.at_fixed_times(kind).await?,
            Phase::Churn(kind) => made = self.one_by_one(kind).await?,
            Phase::Reconnect => (made, begun) = self.reconnect().await?,
        }
        let ended = Sampled::now(&self.plane, &self.crowd)?;
        let latency = self.crowd.watched().latency().finish();
        let is_coming = matches!(phase, Phase::FirstSync | Phase::Reconnect);
        let is_churn = matches!(phase, Phase::Churn(_));
        self.audit().await?;
        tokio::time::sleep(REST.min(self.time())).await;
        let after = self.plane.memory()?;
        let cpu = ended.plane.since(&begun.plane);
        Ok(PhaseResult {
            step: phase.name().to_owned(),
            subject: self.turn.subject.clone(),
            round: self.turn.round,
            started: begun.time,
            shape: self.turn.shape,
            seconds: (ended.at - begun.at).as_secs_f64(),
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

    /// Feeds the whole mesh.
    async fn start(&mut self) -> Result<(), Error> {
        let before = self.plane.published();
        let mut part = String::new();
        for line in self.mesh.objects() {
            part.push_str(&line);
            if part.len() >= PART {
                self.plane.feed(&part).await?;
                part.clear();
            }
        }
        part.push_str("!\n");
        self.plane.feed(&part).await?;
        self.plane.publishes(before, PATIENCE).await
    }

    /// Changes one after the other, while nobody listens.
    async fn alone(&mut self, kind: Kind) -> Result<Made, Error> {
        let begun = Instant::now();
        let mut made = Made::default();
        while made.changes < FEWEST || begun.elapsed() < self.time() {
            let next = tokio::time::Instant::now() + APART;
            let change = self.mesh.change(kind);
            let before = self.plane.published();
            self.feed(&change).await?;
            self.plane.publishes(before, PATIENCE).await?;
            made.add(&change);
            tokio::time::sleep_until(next).await;
        }
        Ok(made)
    }

    /// Makes changes at a fixed rate, however long proxies take to see them.
    async fn at_fixed_times(&mut self, kind: Kind) -> Result<Made, Error> {
        let mut made = Made::default();
        self.crowd.watch(self.mesh.next());
        let apart = Duration::from_secs_f64(1.0 / self.turn.shape.changes);
        let begun = Instant::now();
        loop {
            let due = apart.mul_f64(made.changes as f64);
            if made.changes >= FEWEST && due >= self.time() {
                break;
            }
            self.crowd.rest(&self.plane, due.saturating_sub(begun.elapsed())).await?;
            let change = self.mesh.change(kind);
            self.crowd.watched().sent(change.number, change.pods);
            self.feed(&change).await?;
            made.add(&change);
        }
        self.crowd.see(&self.plane, made.changes, PATIENCE).await?;
        // The last of the changes has its share of the time, too.
        let whole = apart.mul_f64(made.changes as f64);
        self.crowd.rest(&self.plane, whole.saturating_sub(begun.elapsed())).await?;
        Ok(made)
    }

    /// The next change when all have seen the one before, but no sooner than at fixed times.
    async fn one_by_one(&mut self, kind: Kind) -> Result<Made, Error> {
        let mut made = Made::default();
        self.crowd.watch(self.mesh.next());
        let apart = Duration::from_secs_f64(1.0 / self.turn.shape.changes);
        let begun = Instant::now();
        while made.changes < FEWEST || begun.elapsed() < self.time() {
            let next = Instant::now() + apart;
            let change = self.mesh.change(kind);
            self.crowd.watched().sent(change.number, change.pods);
            self.feed(&change).await?;
            made.add(&change);
            self.crowd.see(&self.plane, made.changes, PATIENCE).await?;
            self.crowd.rest(&self.plane, next.saturating_duration_since(Instant::now())).await?;
        }
        Ok(made)
    }

    /// All leave, miss some changes, and come again. What is measured begins when they come.
    async fn reconnect(&mut self) -> Result<(Made, Sampled), Error> {
        let told = {
            let witness = self.crowd.each().next();
            let held: Vec<_> = witness.iter().flat_map(|held| held.kept()).collect();
            proxy::told(held.iter().map(|kept| (kept.name.as_str(), kept.version.as_str())))
        };
        self.crowd.leave().await;
        self.crowd.watch(self.mesh.next());
        let mut made = Made::default();
        for _ in 0..MISSED {
            let change = self.mesh.change(Kind::ReplacePod);
            self.crowd.watched().sent(change.number, change.pods);
            let before = self.plane.published();
            self.feed(&change).await?;
            self.plane.publishes(before, PATIENCE).await?;
            made.add(&change);
        }
        tokio::time::sleep(REST.min(self.time())).await;
        let begun = Sampled { received: (0, 0), ..Sampled::now(&self.plane, &self.crowd)? };
        self.crowd.come(&self.plane, Some(told), MISSED, PATIENCE).await?;
        Ok((made, begun))
    }

    async fn feed(&mut self, change: &Change) -> Result<(), Error> {
        self.plane.feed(&format!("{}!\n", change.lines)).await
    }

    /// Waits until every proxy holds what the mesh is.
    async fn audit(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            match audit(self.crowd.each(), &self.mesh) {
                Ok(()) => return Ok(()),
                Err(reason) if begun.elapsed() > SETTLED => return Err(self.plane.broken(reason)),
                Err(_) => self.crowd.rest(&self.plane, LOOK).await?,
            }
        }
    }
}
