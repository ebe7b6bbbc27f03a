//! The proxy process of a node: started, watched, followed by the next the moment it dies or begins to drain, and exchanged
//! for another program when an operator asks for it.

mod draining;
mod readiness;
mod settings;
mod upgrade;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::draining::Draining;
use self::readiness::{gives_way, is_ready};
use self::upgrade::Exchange;
use crate::stage::killed::Memory;
use crate::stage::logs;
use crate::stage::spawn::{Spawn, Spawned, spawn};

pub(crate) use self::settings::{ProxySettings, inherited};
pub(crate) use self::upgrade::Upgrade;
pub use self::upgrade::Upgraded;

/// Between looks at a proxy that isn't ready, and at one that is.
const LOOKS: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// A proxy that dies younger than this is given a pause before the next.
const INFANT: Duration = Duration::from_secs(1);
/// What a proxy gets to end by itself when the stage goes. Its pods are gone by then, so that whatever connections it still
/// drains serve nobody: those of Leno and ztunnel take their 25 seconds for it, and a person waits.
const GRACE: Duration = Duration::from_millis(500);
/// Time until the end of a proxy that has given way is noticed.
const LAST_BREATH: Duration = Duration::from_millis(20);

/// A proxy as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyState {
    /// Program.
    pub program: String,
    /// Process id on the machine; `None` while it doesn't run.
    pub pid: Option<i32>,
    /// Whether it answers that it is ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it doesn't run.
    pub message: String,
}

/// The other ends of what a supervised proxy is told by.
pub(crate) struct Orders {
    /// How often a proxy has left the node's agent.
    pub departures: watch::Receiver<u64>,
    /// Programs to run from now on.
    pub upgrades: mpsc::Receiver<Upgrade>,
    /// Whether the stage goes.
    pub stop: watch::Receiver<bool>,
}

/// Keeps a node's proxy running until told to stop.
///
/// When one begins to drain, the next is started at once. It is told of the pods and listens in them as well, and only
/// then does the first stop accepting.
pub(crate) async fn supervise(mut settings: ProxySettings, mut orders: Orders, state: watch::Sender<ProxyState>) {
    let mut pause = Duration::ZERO;
    let mut draining = Draining::default();
    let mut exchange = Exchange::None;
    while !*orders.stop.borrow_and_update() {
        let born = Instant::now();
        orders.departures.mark_unchanged();
        state.send_modify(|state| state.program = settings.program.display().to_string());
        let message = match start(&settings).await {
            Ok(proxy) => {
                let (node, pid, program) = (&settings.node, proxy.pid, settings.program.display());
                settings.journal.note(format_args!("node {node}: proxy started (pid {pid}, {program})"));
                state.send_modify(|state| {
                    state.pid = Some(proxy.pid);
                    state.message.clear();
                });
                match attend(proxy, &settings, &mut orders, &state, &mut exchange).await {
                    End::Exited { how } => format!("the proxy ended with {how}; its log is {}", settings.log.display()),
                    End::Draining(proxy, memory) => {
                        let text = format!("the proxy (pid {}) drains, and the next one takes over", proxy.pid);
                        draining.add(proxy, memory, &settings, &orders.stop);
                        text
                    }
                    End::Useless(text) => text,
                    End::Stopped => break,
                }
            }
            Err(reason) => reason,
        };
        let planned = exchange.next(&mut settings, &message);
        pause = if planned || born.elapsed() >= INFANT { Duration::ZERO } else { next_pause(pause) };
        if !planned {
            tracing::warn!(node = settings.node, "{message}");
        }
        settings.journal.note(format_args!("node {}: {message}", settings.node));
        state.send_modify(|state| {
            state.pid = None;
            state.ready = false;
            state.restarts += u32::from(!planned);
            state.message = message;
        });
        let _ = tokio::time::timeout(pause, orders.stop.wait_for(|stop| *stop)).await;
    }
    draining.end().await;
}

/// Ends a proxy, with the connections that it has.
async fn end(mut proxy: Spawned) {
    proxy.handle.signal(Signal::SIGTERM);
    if tokio::time::timeout(GRACE, &mut proxy.ended).await.is_err() {
        proxy.handle.signal(Signal::SIGKILL);
        let _ = proxy.ended.await;
    }
}

/// How a proxy that served went.
enum End {
    Exited {
        /// Its exit code or signal, and why, as far as that is known.
        how: String,
    },
    /// It lives on with the connections that it has.
    Draining(Spawned, Memory),
    /// It was ended for this reason.
    Useless(String),
    /// The stage goes.
    Stopped,
}

/// The first replacement comes at once, however young the dead one was.
fn next_pause(last: Duration) -> Duration {
    if last.is_zero() { Duration::from_millis(50) } else { (last * 2).min(Duration::from_secs(2)) }
}

fn told(code: i32) -> String {
    if code > 128 { format!("signal {}", code - 128) } else { format!("exit code {code}") }
}

async fn start(settings: &ProxySettings) -> Result<Spawned, String> {
    let output = logs::capture(&settings.log).map_err(|reason| format!("cannot open the proxy's log: {reason}"))?;
    let errors = output.try_clone().map_err(|reason| reason.to_string())?;
    let netns = settings.namespace.try_clone_fd().map_err(|reason| reason.to_string())?;
    spawn(Spawn {
        label: format!("the proxy of {} ({})", settings.node, settings.program.display()),
        program: settings.program.clone(),
        args: settings.arguments(),
        env: settings.environment(),
        cwd: settings.log.parent().map(Path::to_owned),
        netns,
        binds: vec![(settings.resolv_conf.display().to_string(), "/etc/resolv.conf".to_owned())],
        isolated: None,
        stdin: Stdio::null(),
        stdout: output.into(),
        stderr: errors.into(),
    })
    .await
    .map_err(|reason| reason.to_string())
}

/// Watches a running proxy until another is to serve in its place, or the stage goes.
async fn attend(
    mut proxy: Spawned,
    settings: &ProxySettings,
    orders: &mut Orders,
    state: &watch::Sender<ProxyState>,
    exchange: &mut Exchange,
) -> End {
    let Orders { departures, upgrades, stop } = orders;
    let mut looking = std::pin::pin!(look(settings, state));
    let mut giving_way = std::pin::pin!(give_way(settings, departures, state.subscribe()));
    let mut seen = state.subscribe();
    // A script that becomes a proxy may enter a control group first.
    let mut serving = state.subscribe();
    let (mut memory, mut is_serving) = (Memory::of(proxy.pid), false);
    loop {
        tokio::select! {
            code = &mut proxy.ended => return exited(code.unwrap_or(1), &memory),
            () = is_told_ready(&mut serving), if !is_serving => {
                is_serving = true;
                memory = Memory::of(proxy.pid);
            }
            () = &mut giving_way => {
                return match tokio::time::timeout(LAST_BREATH, &mut proxy.ended).await {
                    Ok(code) => exited(code.unwrap_or(1), &memory),
                    Err(_) => End::Draining(proxy, memory),
                };
            }
            () = &mut looking => {}
            Some(upgrade) = upgrades.recv(), if !exchange.is_under_way() => {
                // One that is not ready has nothing to hand over, and would not be seen to give way.
                if !seen.borrow().ready {
                    *exchange = Exchange::leaving(upgrade);
                    end(proxy).await;
                    return End::Useless("the proxy was not ready when it was exchanged".to_owned());
                }
                proxy.handle.signal(Signal::SIGTERM);
                *exchange = Exchange::leaving(upgrade);
            }
            () = is_told_ready(&mut seen), if exchange.is_on_trial() => exchange.succeed(proxy.pid),
            () = exchange.overdue(), if exchange.is_under_way() => {
                if exchange.is_on_trial() {
                    end(proxy).await;
                    return End::Useless("the new proxy was not ready in time and was ended".to_owned());
                }
                exchange.fail("the proxy that runs was told to end (SIGTERM) and did not give up its ports");
            }
            () = is_told_to_stop(stop) => break,
        }
    }
    end(proxy).await;
    state.send_modify(|state| {
        state.pid = None;
        state.ready = false;
    });
    End::Stopped
}

fn exited(code: i32, memory: &Memory) -> End {
    End::Exited { how: told(code) + &memory.reason_of(code) }
}

async fn is_told_ready(seen: &mut watch::Receiver<ProxyState>) {
    let _ = seen.wait_for(|state| state.ready).await;
}

async fn is_told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Keeps asking a proxy whether it is ready.
async fn look(settings: &ProxySettings, state: &watch::Sender<ProxyState>) {
    loop {
        let ready = is_ready(&settings.namespace).await;
        let changed = state.send_if_modified(|state| {
            let changed = state.ready != ready;
            state.ready = ready;
            changed
        });
        if changed {
            let how = if ready { "ready" } else { "not ready" };
            settings.journal.note(format_args!("node {}: proxy {how}", settings.node));
        }
        tokio::time::sleep(if ready { LOOKS.1 } else { LOOKS.0 }).await;
    }
}

/// Returns when a proxy that was ready has given way.
async fn give_way(
    settings: &ProxySettings,
    departures: &mut watch::Receiver<u64>,
    mut served: watch::Receiver<ProxyState>,
) {
    // Before it answers, its port is refused as that of one that drains is, and what is heard of a departure may be its
    // predecessor's, which was killed. One that ends before it was ready is seen to end.
    if served.wait_for(|state| state.ready).await.is_err() {
        std::future::pending::<()>().await;
    }
    loop {
        if departures.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if gives_way(&settings.namespace).await {
            return;
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
