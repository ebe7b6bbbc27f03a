//! Ctrl-C and SIGTERM: what waits, stops waiting, and what was started is removed by the one who started it.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal};

/// Signals come to a process as a whole.
static CAME: AtomicBool = AtomicBool::new(false);

/// As a shell tells of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// From here on these signals only make [`check`] fail.
pub(crate) fn watch() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Blocked in this thread and those it starts, and taken by the one below.
    signals.thread_block().context("blocking signals")?;
    std::thread::spawn(move || while signals.wait().is_ok_and(|_| !CAME.swap(true, Ordering::SeqCst)) {});
    Ok(())
}

pub(crate) fn came() -> bool {
    CAME.load(Ordering::SeqCst)
}

/// # Errors
///
/// If one came.
pub(crate) fn check() -> Result<()> {
    if came() { bail!("stopped by a signal") } else { Ok(()) }
}
