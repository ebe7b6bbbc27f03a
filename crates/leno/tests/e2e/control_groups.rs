//! Limits on single processes by control groups, of either version.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use leno_testkit::skips;

use crate::stage::eventually;

const ROOT: &str = "/sys/fs/cgroup";
/// What a processor quota is a part of, microseconds.
const PERIOD_MICROSECONDS: u32 = 100_000;

/// A control group of this test's own. Who is in it when it is dropped goes on without limits.
pub(crate) struct Group {
    dir: PathBuf,
    parent: PathBuf,
    /// Of version 1, where each controller has groups of its own.
    is_first: bool,
}

impl Group {
    /// A group for a controller, `cpu` or `memory`. `None` after reporting that `test` is skipped without it.
    pub(crate) fn new(test: &str, controller: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = Path::new(ROOT).join(controller);
        let is_first = first.join("cgroup.procs").exists();
        let parent = if is_first { first } else { PathBuf::from(ROOT) };
        let dir = parent.join(format!("leno-t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let make = || {
            if !is_first {
                std::fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))?;
            }
            std::fs::create_dir(&dir)
        };
        if let Err(error) = make() {
            skips::skip(test, &format!("can't make a control group for {controller} below {ROOT} ({error})"));
            return None;
        }
        Some(Self { dir, parent, is_first })
    }

    /// Takes a process in. What it starts from now on is in it, too.
    pub(crate) fn take(&self, pid: i32) {
        std::fs::write(self.members(), pid.to_string()).unwrap();
    }

    /// The file that a process writes its number to that wants to be taken in.
    pub(crate) fn members(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Gives it so many hundredths of one processor.
    pub(crate) fn give_processor(&self, hundredths: u32) {
        let quota = hundredths * PERIOD_MICROSECONDS / 100;
        if self.is_first {
            self.set("cpu.cfs_period_us", PERIOD_MICROSECONDS.to_string());
            self.set("cpu.cfs_quota_us", quota.to_string());
        } else {
            self.set("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"));
        }
    }

    /// How often it had to wait because it had used up its part of a period.
    pub(crate) fn waits_for_processor(&self) -> u64 {
        self.count("cpu.stat", "nr_throttled")
    }

    /// Gives it so much memory, and no swap.
    pub(crate) fn give_memory(&self, bytes: u64) {
        let [limit, and_swap] = if self.is_first {
            ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        } else {
            ["memory.max", "memory.swap.max"]
        };
        self.set(limit, bytes.to_string());
        // Kernels can be built without it.
        let _ = std::fs::write(self.dir.join(and_swap), if self.is_first { bytes } else { 0 }.to_string());
    }

    /// Memory that it uses, bytes.
    pub(crate) fn memory(&self) -> u64 {
        let file = if self.is_first { "memory.usage_in_bytes" } else { "memory.current" };
        self.read(file).trim().parse().unwrap()
    }

    /// How many processes the kernel killed because there was no memory left in it.
    pub(crate) fn killed_for_memory(&self) -> u64 {
        self.count(if self.is_first { "memory.oom_control" } else { "memory.events" }, "oom_kill")
    }

    fn set(&self, file: &str, value: String) {
        std::fs::write(self.dir.join(file), &value).unwrap_or_else(|error| panic!("{file}: {value}: {error}"));
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// The number beside a word.
    fn count(&self, file: &str, word: &str) -> u64 {
        let text = self.read(file);
        let found = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{file} has no {word}: {text}")).trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let empty = || {
            for pid in self.read("cgroup.procs").lines() {
                // It may have ended meanwhile.
                let _ = std::fs::write(self.parent.join("cgroup.procs"), pid);
            }
            std::fs::remove_dir(&self.dir).map_err(|error| error.to_string())
        };
        // One that ends now is in it for a moment longer.
        if std::thread::panicking() {
            let _ = empty();
        } else {
            eventually("the end of a control group", empty);
        }
    }
}
