//! How much memory the process may have for what it carries, and what becomes of clients when it has more.
//!
//! Most of it is what waits for clients that ask for much and read little. Each of their requests holds little; there may be
//! very many.

use std::fs;
use std::io::Read;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leno_telemetry::MemoryGroup;

/// How old a look at the memory may be. A look takes tens of microseconds.
const AGE: Duration = Duration::from_millis(50);

/// How full it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// There is room.
    Fine,
    /// Clients that don't read are let go.
    High,
    /// No new requests either.
    Full,
}

/// Watches the memory of this process. It looks when somebody asks, so an idle process is not woken.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Most memory, bytes; 0 for no limit.
    most: u64,
    began: Instant,
    /// When it was looked at, in milliseconds since the beginning, and what was found.
    looked: AtomicU64,
    level: AtomicU8,
}

impl Pressure {
    /// With this limit, bytes; 0 stands for none.
    pub(crate) fn new(most: u64) -> Self {
        Self { most, began: Instant::now(), looked: AtomicU64::new(0), level: AtomicU8::new(0) }
    }

    /// How full it is, and whether this is a new finding, for which something is to be done.
    pub(crate) fn look(&self, give_back: fn()) -> (Level, bool) {
        if self.most == 0 {
            return (Level::Fine, false);
        }
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let looked = self.looked.load(Relaxed);
        let is_old = now.saturating_sub(looked) >= AGE.as_millis() as u64;
        // One of the threads looks, and the others go on with what was found last.
        if !is_old || self.looked.compare_exchange(looked, now, Relaxed, Relaxed).is_err() {
            return (level(self.level.load(Relaxed)), false);
        }
        let mut found = self.found();
        if found > Level::Fine {
            // What allocators keep is no reason to refuse anything.
            give_back();
            found = self.found();
        }
        self.level.store(found as u8, Relaxed);
        (found, found > Level::Fine)
    }

    fn found(&self) -> Level {
        match resident() {
            Some(bytes) if bytes >= self.most => Level::Full,
            Some(bytes) if bytes >= self.most / 8 * 7 => Level::High,
            _ => Level::Fine,
        }
    }
}

fn level(number: u8) -> Level {
    [Level::Fine, Level::High].into_iter().find(|level| *level as u8 == number).unwrap_or(Level::Full)
}

/// What the kernel tells of a process fits into this many bytes, and then comes with one call. A look at the memory takes
/// a thread's time from its clients.
const STATUS: usize = 8 << 10;

/// Memory of this process that nothing but itself can give back, bytes.
fn resident() -> Option<u64> {
    let mut status = [0; STATUS];
    let length = fs::File::open("/proc/self/status").ok()?.read(&mut status).ok()?;
    let line = str::from_utf8(&status[..length]).ok()?.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Memory where nobody sets a limit, bytes.
const ENOUGH: u64 = 1 << 30;

/// The limit if none is set: three quarters of what the container may have, bytes.
pub(crate) fn usual() -> u64 {
    let container = MemoryGroup::of("self").and_then(|group| group.limit());
    container.map_or(ENOUGH, |most| most / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_full_as_the_process_is_large() {
        let own = resident().expect("Linux tells");
        assert!(own > 0);
        let found = |most| Pressure::new(most).found();
        assert_eq!([found(1), found(own * 16)], [Level::Full, Level::Fine]);
        assert_eq!(Pressure::new(0).look(|| ()), (Level::Fine, false));
        for one in [Level::Fine, Level::High, Level::Full] {
            assert_eq!(level(one as u8), one);
        }
    }

    #[test]
    fn a_finding_holds_for_a_while_and_is_told_once() {
        let pressure = Pressure::new(1);
        while pressure.look(|| ()) == (Level::Fine, false) {
            std::thread::yield_now();
        }
        let looked = pressure.looked.load(Relaxed);
        let again = pressure.look(|| ());
        assert!(again == (Level::Full, false) || pressure.looked.load(Relaxed) != looked);
    }
}
