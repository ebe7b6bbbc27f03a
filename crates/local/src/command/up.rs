//! `leno up` in the foreground: a stage for as long as the process lives.

use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::Error;
use crate::command::progress::{Audience, LOOK, Progress, say};
use crate::command::signals::Signals;
use crate::error::name_flag;
use crate::names::StageName;
use crate::stage::{Stage, StageOptions};

/// Environment variable that tells a detached supervisor to show progress nowhere.
pub(crate) const DETACHED: &str = "LENO_DETACHED";

/// How long `leno up` waits until all is ready, and what it does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// `None`: for ever.
    pub limit: Option<Duration>,
    /// What becomes of a stage that is not ready by then.
    pub on_timeout: OnTimeout,
}

/// What becomes of a stage that is not ready in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    /// It is stopped and removed.
    Stop,
    /// It goes on.
    Keep,
}

/// Why a stage in the foreground ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// `leno down` asked for it.
    Asked,
    /// A signal did.
    Signal,
}

/// Plays a stage until Ctrl-C, SIGTERM or `leno down`, then removes every trace, whatever signals come meanwhile.
/// `privilege` must have been acquired before. Each step is told on standard error only if that is a terminal; that all is
/// ready, what is waited for, edits and warnings always.
///
/// # Errors
/// If the stage can't be started; [`Error::Timeout`] if it was not ready in time, once it has ended.
pub async fn run_foreground(options: StageOptions, patience: Patience) -> Result<Ended, Error> {
    let mut signals = Signals::listen()?;
    let detached = std::env::var_os(DETACHED).is_some();
    let audience = if detached { Audience::Nobody } else { Audience::of_stderr() };
    let name = options.name.clone();
    let (give_up, given_up) = watch::channel(false);
    let started = {
        let mut starting = pin!(Stage::start_unless(options, given_up));
        tokio::select! {
            started = &mut starting => started,
            () = signals.next() => {
                audience.say(STOPPING);
                give_up.send_replace(true);
                starting.await
            }
        }
    };
    let stage = match started {
        Err(Error::Interrupted) => {
            audience.say(STOPPED);
            return Ok(Ended::Signal);
        }
        started => started?,
    };
    let outcome = if *give_up.borrow() {
        Ok(Ended::Signal)
    } else {
        let outcome = play(&stage, &name, patience, audience, &mut signals).await;
        audience.say(STOPPING);
        outcome
    };
    end(stage, audience, &mut signals).await;
    audience.say(STOPPED);
    outcome
}

const STOPPING: &str = "stopping: everything that was made is removed";
const STOPPED: &str = "stopped; nothing is left";

/// Until something ends it.
async fn play(
    stage: &Stage,
    name: &StageName,
    patience: Patience,
    audience: Audience,
    signals: &mut Signals,
) -> Result<Ended, Error> {
    let mut events = stage.events();
    let mut listing = stage.watch_listing();
    let mut progress = Progress::foreground(name, audience);
    let begun = Instant::now();
    let mut late = None;
    let mut ready = false;
    let mut look = tokio::time::interval(LOOK);
    let mut down = pin!(stage.down_requested());
    loop {
        let now = listing.borrow_and_update().clone();
        // There is no state before it that could stay.
        if !ready && !now.refused.is_empty() && now.pods.is_empty() {
            return Err(Error::Manifest(now.refused));
        }
        progress.tell(&now);
        if now.is_ready() {
            ready = true;
            late = None;
        }
        tokio::select! {
            event = events.recv() => match event {
                Ok(event) => progress.event(&event),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return late.map_or(Ok(Ended::Asked), Err),
            },
            Ok(()) = listing.changed() => {}
            _ = look.tick() => {
                progress.tell_missing(&now);
                let over = patience.limit.filter(|limit| !ready && begun.elapsed() >= *limit);
                if let (Some(limit), None) = (over, &late) {
                    let what = format!("after {limit:?} not all is ready: {}", now.missing());
                    match patience.on_timeout {
                        OnTimeout::Stop => return Err(Error::Timeout(what)),
                        OnTimeout::Keep => {
                            let flag = name_flag(name.as_str());
                            say(&format!("error: {what}; the stage goes on, look with `leno ps{flag}`"));
                            late = Some(Error::Timeout(what));
                        }
                    }
                }
            }
            () = signals.next() => return late.map_or(Ok(Ended::Signal), Err),
            () = &mut down => return late.map_or(Ok(Ended::Asked), Err),
        }
    }
}

/// Takes the stage apart. A further signal hurries those that are asked to end, and cuts nothing short.
async fn end(stage: Stage, audience: Audience, signals: &mut Signals) {
    let handle = stage.handle();
    let mut ending = pin!(stage.shutdown());
    let mut hurried = false;
    loop {
        tokio::select! {
            () = &mut ending => return,
            () = signals.next() => {
                if !std::mem::replace(&mut hurried, true) {
                    audience.say("still stopping: what does not end by itself is killed now");
                }
                handle.hurry();
            }
        }
    }
}
