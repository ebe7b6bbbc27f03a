//! `leno demo`: the mesh at work on the sample application, every claim checked.
//!
//! Four acts: `outside` the mesh, `enroll` (the namespace gets its label), in the `mesh`, and
//! `deny` (a policy turns one of the programs away). A steady client loads the application all the
//! time; the nodes' link is watched for a text that every message carries.

use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leno_local::Stage;
use tokio::signal::unix::{SignalKind, signal};

mod act;
mod claims;
mod keep;
mod load;
mod manifests;
mod metrics;
mod processes;
mod progress;
mod report;
mod scene;

use act::Watchers;
use claims::{Denial, Seen, Talk};
use manifests::{CANARY, Manifests};
use progress::Progress;
use report::Report;
use scene::Scene;

use crate::args::{DemoArgs, Format};
use crate::output::{self, Paint};

/// Longest that enrolment may take until the last old connection has ended.
const ENROLMENT: Duration = Duration::from_secs(20);
/// Longest that a policy may take to turn snoop away.
const REFUSAL: Duration = Duration::from_secs(10);

/// Shares of the measured time, in tenths: `outside`, `mesh`, `deny`. `enroll` takes what it takes.
const SHARES: [u32; 3] = [3, 4, 3];

/// Plays all acts, prints what was seen, and fails unless every claim held.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let report = if args.keep && !keep::is_keeper() {
        match keep::play_in_keeper(args, Progress::is_watched())? {
            Some(report) => report,
            None => return Ok(ExitCode::FAILURE), // It has said why.
        }
    } else {
        // The proxies of a stage that ends lose their control plane, and it warns of them; here that is no news.
        crate::stage::prepare("error")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        match runtime.block_on(interruptible(args))? {
            Some(report) => report,
            None => return Ok(ExitCode::SUCCESS), // The keeper, at the end of its time.
        }
    };
    match args.output.output {
        Format::Json => output::json(&report)?,
        Format::Text => output::line(&report.text(Paint::stdout()))?,
    }
    if args.keep {
        eprintln!(
            "\nit keeps running: look with `leno ps --name {0}`, end it with `leno down --name {0}`",
            args.name.as_str()
        );
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The play, ended early by Ctrl-C; cleans up either way.
async fn interruptible(args: &DemoArgs) -> anyhow::Result<Option<Report>> {
    let progress = Progress::new(if args.keep { keep::is_watched() } else { Progress::is_watched() });
    let directory = Stage::manifest_dir(&args.name)?;
    let manifests = Manifests::write(&directory).context("writing the sample's manifests")?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let caller_gone = keep::caller_gone(args.keep);
    let mut stop = pin!(async {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
            () = caller_gone => (),
        }
    });

    progress.act("A sample application on two nodes, outside the mesh");
    let started = Instant::now();
    let scene = {
        let mut starting = pin!(Scene::start(args.name.clone(), &directory));
        tokio::select! {
            scene = &mut starting => scene?,
            () = &mut stop => {
                // A scene that is half made can't be taken apart; a complete one can.
                if let Ok(scene) = starting.await {
                    scene.stop().await;
                }
                return Err(output::Interrupted.into());
            }
        }
    };
    progress.done("all pods are ready", started);

    let played = tokio::select! {
        played = play(args, &scene, &manifests, &progress) => played,
        () = &mut stop => Err(output::Interrupted.into()),
        () = scene.down_requested() => Err(anyhow::anyhow!("interrupted by `leno down`")),
    };
    match played {
        Ok(seen) if args.keep => {
            keep::hand_over(&judge(seen))?;
            keep::until_told(&scene).await?;
            scene.stop().await;
            Ok(None)
        }
        Ok(mut seen) => {
            seen.left_behind = Some(scene.stop().await);
            Ok(Some(judge(seen)))
        }
        Err(error) => {
            scene.stop().await;
            Err(error)
        }
    }
}

fn judge(seen: Seen) -> Report {
    let claims = claims::check(&seen);
    Report::new(seen, claims)
}

async fn play(args: &DemoArgs, scene: &Scene, manifests: &Manifests, progress: &Progress) -> anyhow::Result<Seen> {
    let [outside, mesh, deny] = SHARES.map(|tenths| Duration::from_secs(args.duration) * tenths / 10);
    let mut seen = Seen::default();
    let mut watch = Watchers {
        steady: scene.follow("vote-bot").await?,
        snoop: scene.follow("snoop").await?,
        wire: scene.watch_link(CANARY)?,
    };
    watch.settle().await?;

    let metrics = scene.metrics().await?;
    let (phase, metrics) = watch.act("outside", scene, &metrics, async |now| Ok(now.elapsed >= outside)).await?;
    progress.tell(&format!(
        "{} requests, {} failed, p50 {:.2} ms, p99 {:.2} ms",
        phase.requests, phase.errors, phase.p50_ms, phase.p99_ms
    ));
    progress.tell(&format!("whoever watches the link reads it: {CANARY:?} {} times", phase.plaintext_canary_hits));
    seen.phases.push(phase);

    progress.act("The namespace gets the label istio.io/dataplane-mode: ambient");
    let before = scene.processes()?;
    let started = Instant::now();
    manifests.enrol().context("labelling the namespace")?;
    let mut quiet = 0;
    let (phase, metrics) = watch
        .act("enroll", scene, &metrics, async |now| {
            // Connections from before stay as they are until their programs close them.
            quiet = if now.canaries == 0 && scene.all_in_mesh() { quiet + 1 } else { 0 };
            Ok(quiet == 2 || now.elapsed >= ENROLMENT)
        })
        .await?;
    seen.processes = (before, scene.processes()?);
    if quiet == 2 {
        progress.done("everything is encrypted", started);
    }
    let restarts =
        if seen.processes.0 == seen.processes.1 { "nothing was restarted" } else { "something was restarted" };
    progress.tell(&format!("{} requests meanwhile, {} failed; {restarts}", phase.requests, phase.errors));
    seen.phases.push(phase);

    progress.act("In the mesh");
    let earlier = metrics.clone();
    let (phase, metrics) = watch.act("mesh", scene, &metrics, async |now| Ok(now.elapsed >= mesh)).await?;
    progress.tell(&format!(
        "{} requests, {} failed, p50 {:.2} ms, p99 {:.2} ms",
        phase.requests, phase.errors, phase.p50_ms, phase.p99_ms
    ));
    progress.tell(&format!(
        "on the link: {} packets, {CANARY:?} {} times",
        phase.link_packets, phase.plaintext_canary_hits
    ));
    let edges = metrics.since(&earlier).edges();
    seen.talks = edges.into_iter().map(|(edge, connections)| Talk { edge, connections }).collect();
    seen.phases.push(phase);

    progress.act("A policy: only web may talk to voting");
    let started = Instant::now();
    manifests.deny().context("adding the policy")?;
    let mut told = false;
    let (phase, _) = watch
        .act("deny", scene, &metrics, async |now| {
            if now.turned_away.is_some() && !told {
                told = true;
                progress.done("snoop is turned away", started);
            }
            Ok(now.turned_away.map_or(now.elapsed >= REFUSAL, |since| now.elapsed >= since + deny))
        })
        .await?;
    seen.denial = denial(scene).await?;
    if let Some(reason) = &seen.denial.explained {
        progress.tell(&format!("because: {reason}"));
    }
    progress.tell(&format!("everybody else: {} requests, {} failed", phase.requests, phase.errors));
    seen.phases.push(phase);
    Ok(seen)
}

/// What `explain` and the access log say about snoop's denial.
async fn denial(scene: &Scene) -> anyhow::Result<Denial> {
    let explained = scene.explain_denial("snoop", "voting-svc:8080")?;
    let log = scene.proxy_log("node-2").await?;
    let refused: Vec<_> = log.lines().filter(|line| line.contains("sa/snoop\"") && line.contains("error=")).collect();
    let in_those_words = |line: &&&str| explained.as_ref().is_some_and(|reason| line.contains(reason.as_str()));
    // Without a line in the same words, any refusal of snoop shows what the difference is.
    let access_log = refused.iter().rev().find(in_those_words).or(refused.last()).map(ToString::to_string);
    Ok(Denial { explained, access_log })
}
