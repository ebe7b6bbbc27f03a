//! How much memory a process may have: the control group that it is in limits it, and those around that one do. When they have no
//! more to give, the kernel kills a process.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are found.
const ROOT: &str = "/sys/fs/cgroup";
/// Version 1 tells a number near the highest where there is no limit, bytes.
const NO_LIMIT: u64 = 1 << 62;

/// The control group that limits the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryGroup {
    dir: PathBuf,
    /// The outermost one that is visible here.
    outermost: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryGroup {
    /// That of a process, by its number or `self`. `None` if nobody limits memory here, or there is no such process.
    pub fn of(process: impl Display) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        Self::among(&groups, Path::new(ROOT))
    }

    /// The one that limits memory among `groups`, which are as in proc_pid_cgroup(5).
    fn among(groups: &str, root: &Path) -> Option<Self> {
        let named = groups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            match controllers {
                "" => Some((Version::Two, root.to_owned(), path)),
                _ => {
                    controllers.split(',').any(|one| one == "memory").then(|| (Version::One, root.join("memory"), path))
                }
            }
        });
        // Where both versions are mounted, the first may have the memory.
        let mut named: Vec<_> = named.collect();
        named.sort_by_key(|(version, ..)| *version == Version::Two);
        let here = named.into_iter().flat_map(|(version, outermost, path)| {
            // In a container, its own group may be the outermost one that it sees, whatever it is called outside.
            [outermost.join(path.trim_start_matches('/')), outermost.clone()].map(|dir| Self {
                dir,
                outermost: outermost.clone(),
                version,
            })
        });
        here.into_iter()
            .find(|group| group.dir.join(group.limit_file()).exists() || group.dir.join(group.kills_file()).exists())
    }

    /// How much memory it may have, bytes: the least that it and those around it allow. `None` for as much as there is.
    pub fn limit(&self) -> Option<u64> {
        let around = self.dir.ancestors().take_while(|dir| dir.starts_with(&self.outermost));
        let limits = around.filter_map(|dir| fs::read_to_string(dir.join(self.limit_file())).ok()?.trim().parse().ok());
        limits.filter(|limit: &u64| *limit < NO_LIMIT).min()
    }

    /// How many of its processes the kernel has killed because there was no memory left for them. `None` if it doesn't tell.
    pub fn kills(&self) -> Option<u64> {
        let told = fs::read_to_string(self.dir.join(self.kills_file())).ok()?;
        told.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    fn limit_file(&self) -> &'static str {
        match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    fn kills_file(&self) -> &'static str {
        match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// A directory with these files, which goes with this.
    struct Groups(PathBuf);

    impl Groups {
        fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn groups(files: &[(&str, &str)]) -> Groups {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("leno-groups-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let root = Groups(std::env::temp_dir().join(name));
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_limit_counts_in_either_version() {
        let root = groups(&[
            ("pods/memory.max", "1000\n"),
            ("pods/one/memory.max", "max\n"),
            ("pods/one/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n"),
        ]);
        let group = MemoryGroup::among("0::/pods/one\n", root.path()).unwrap();
        assert_eq!((group.limit(), group.kills()), (Some(1000), Some(2)));

        let root = groups(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.limit_in_bytes", "4096\n"),
            ("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
        ]);
        let text = "4:cpu,cpuacct:/b\n3:memory:/a\n0::/\n";
        let group = MemoryGroup::among(text, root.path()).unwrap();
        assert_eq!((group.limit(), group.kills()), (Some(4096), Some(7)));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_outermost() {
        let root = groups(&[("memory.max", "2000\n")]);
        let group = MemoryGroup::among("0::/../outside/of/it\n", root.path()).unwrap();
        assert_eq!(group.limit(), Some(2000));
        assert_eq!(group.kills(), None);
    }

    #[test]
    fn where_nothing_limits_there_is_no_limit() {
        let root = groups(&[("memory/memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(MemoryGroup::among("3:memory:/\n", root.path()).unwrap().limit(), None);
        assert_eq!(MemoryGroup::among("0::/x\n", groups(&[]).path()), None);
        assert_eq!(MemoryGroup::of("nobody"), None);
    }
}
