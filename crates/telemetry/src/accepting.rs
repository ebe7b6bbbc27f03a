//! Listeners that can't accept a connection.
//!
//! When a process is out of descriptors, each of its listeners fails at once, at each attempt. So each listener pauses
//! before it tries again. All of them together log one line a second, and a metric counts the pauses. They continue by
//! themselves when there are descriptors again.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Gate;

/// Long enough that hundreds of listeners take hardly any processor time, and short enough that nobody notices it once
/// a descriptor is free.
const PAUSE: Duration = Duration::from_millis(50);

/// Counted for the whole process, because the limit is the process's.
static PAUSES: AtomicU64 = AtomicU64::new(0);
static SAID: Gate = Gate::new();

/// How long to wait before the next attempt, after `accept` has failed with `error`. `None` if the error concerns only
/// one connection, which is gone. Counts the pause, and logs it if nobody has for a second.
pub fn pause_after(error: &io::Error) -> Option<Duration> {
    if is_of_one_connection(error) {
        tracing::debug!(%error, "a connection was gone before it was accepted");
        return None;
    }
    PAUSES.fetch_add(1, Relaxed);
    if let Some(untold) = SAID.pass() {
        tracing::warn!(
            %error, pauses = untold + 1,
            "can't accept connections; those that come wait. Raise the limit on open files (ulimit -n), or find out \
             who opens so many"
        );
    }
    Some(PAUSE)
}

/// Whether the process or the system lacks what a connection takes. That is temporary; other errors of a listener may
/// be permanent.
pub fn is_shortage(error: &io::Error) -> bool {
    // ENFILE, EMFILE, ENOBUFS.
    error.kind() == io::ErrorKind::OutOfMemory || matches!(error.raw_os_error(), Some(23 | 24 | 105))
}

/// How many times listeners of this process have paused.
pub fn pauses() -> u64 {
    PAUSES.load(Relaxed)
}

/// Whether it is the error of one connection while it waited to be accepted. `accept` returns these, too (accept(2)).
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable,
        PermissionDenied, TimedOut, WouldBlock,
    };
    // EPROTO, ENOPROTOOPT, ENONET, EOPNOTSUPP and EHOSTDOWN. The library has no names for them.
    const OTHERS: [i32; 5] = [71, 92, 64, 95, 112];
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | PermissionDenied
            | TimedOut
            | WouldBlock
    ) || error.raw_os_error().is_some_and(|code| OTHERS.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_gone_keeps_nobody_waiting() {
        // ECONNABORTED, EPROTO, EPERM, EHOSTDOWN.
        for code in [103, 71, 1, 112] {
            assert_eq!(pause_after(&io::Error::from_raw_os_error(code)), None, "{code}");
        }
        // EMFILE, ENFILE, ENOBUFS, ENOMEM; and EINVAL, which would come back for ever.
        for code in [24, 23, 105, 12, 22] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!((pause_after(&error), is_shortage(&error)), (Some(PAUSE), code != 22), "{code}");
        }
    }
}
