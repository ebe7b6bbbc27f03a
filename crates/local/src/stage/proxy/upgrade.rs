//! Exchanging a node's proxy for another program while it serves, and back when the new one does not get ready.
//!
//! The proxy that runs is told to end. It drains, and takes what is new until the next one listens in its pods
//! (`LENO_TAKEOVER_TIMEOUT`, five seconds). If the new program is not ready within [`TRIAL`], the old program is started
//! again, early enough to take over from the one that drains: neither order of failure costs a new connection.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::settings::ProxySettings;

/// What a proxy that was told to end gets to give up its ports.
const LEAVING: Duration = Duration::from_secs(10);
/// What a new program gets to be ready. It must leave the old program enough of the five seconds in which the proxy that
/// drains still takes what is new.
const TRIAL: Duration = Duration::from_secs(3);

/// An order to run another program as a node's proxy.
pub(crate) struct Upgrade {
    /// The program.
    pub program: PathBuf,
    /// Answered when it serves, or when it is known that it does not.
    pub done: oneshot::Sender<Result<Upgraded, String>>,
}

/// An exchange that worked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// The program that served before.
    pub from: PathBuf,
    /// Process id of the new proxy on the machine.
    pub pid: i32,
}

/// The exchange that is under way.
pub(super) enum Exchange {
    None,
    /// The proxy that runs was told to end.
    Leaving {
        upgrade: Upgrade,
        by: Instant,
    },
    /// The new program was started.
    Trial {
        from: PathBuf,
        done: oneshot::Sender<Result<Upgraded, String>>,
        by: Instant,
    },
}

impl Exchange {
    pub(super) fn leaving(upgrade: Upgrade) -> Self {
        Self::Leaving { upgrade, by: Instant::now() + LEAVING }
    }

    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(super) fn is_on_trial(&self) -> bool {
        matches!(self, Self::Trial { .. })
    }

    /// Returns when the present step takes too long.
    pub(super) fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let by = match self {
            Self::None => None,
            Self::Leaving { by, .. } | Self::Trial { by, .. } => Some(*by),
        };
        async move {
            match by {
                Some(by) => tokio::time::sleep_until(by).await,
                None => std::future::pending().await,
            }
        }
    }

    /// The new program is ready.
    pub(super) fn succeed(&mut self, pid: i32) {
        if let Self::Trial { from, done, .. } = std::mem::replace(self, Self::None) {
            // Whoever asked may be gone.
            let _ = done.send(Ok(Upgraded { from, pid }));
        }
    }

    /// It does not come to an exchange.
    pub(super) fn fail(&mut self, reason: &str) {
        match std::mem::replace(self, Self::None) {
            Self::None => {}
            Self::Leaving { upgrade: Upgrade { done, .. }, .. } | Self::Trial { done, .. } => {
                let _ = done.send(Err(reason.to_owned()));
            }
        }
    }

    /// A proxy has gone, with these words. Chooses the next program; whether that is part of an exchange.
    pub(super) fn next(&mut self, settings: &mut ProxySettings, why: &str) -> bool {
        match std::mem::replace(self, Self::None) {
            Self::None => false,
            Self::Leaving { upgrade: Upgrade { program, done }, .. } => {
                let from = std::mem::replace(&mut settings.program, program);
                *self = Self::Trial { from, done, by: Instant::now() + TRIAL };
                true
            }
            Self::Trial { from, done, .. } => {
                let failed = std::mem::replace(&mut settings.program, from);
                let (failed, from) = (failed.display(), settings.program.display());
                let _ = done.send(Err(format!("{failed} did not become ready ({why}); {from} serves again")));
                true
            }
        }
    }
}
