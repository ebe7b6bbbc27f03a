//! Control groups: how all that belongs to the cluster is found again, whoever started it and however that ended.
//!
//! Every daemon joins a group before it becomes the program it is for, and what it starts is born into the same group or is
//! put by the kubelet into the node's. So the processes below [`NAME`] are the cluster's, all of them and no others; no list
//! of process numbers has to be kept, which would be wrong as soon as `up` is killed between a start and its record.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Of the group, in every hierarchy.
pub(crate) const NAME: &str = "leno-cluster";
/// Below it, one group for each daemon and for each node's own programs.
const DAEMONS: &str = "daemons";

/// The mounted hierarchies.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    /// Those in which groups are made.
    hierarchies: Vec<PathBuf>,
    /// A hierarchy of version 2 beside those of version 1: runc makes groups there, too.
    beside: Vec<PathBuf>,
    /// The one in which daemons are kept apart.
    tracking: PathBuf,
    version_2: bool,
}

impl Cgroups {
    pub(crate) fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
        Self::from_mounts(&mounts)
    }

    fn from_mounts(mounts: &str) -> Result<Self> {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(path), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            match kind {
                "cgroup" => first.push((PathBuf::from(path), options.to_owned())),
                "cgroup2" => second.push(PathBuf::from(path)),
                _ => (),
            }
        }
        let with = |controller: &str| {
            first
                .iter()
                .find(|(_, options)| options.split(',').any(|option| option == controller))
                .map(|(path, _)| path)
        };
        // A machine that has both keeps its controllers in version 1. Of these, `pids` holds nothing that a process would
        // miss when it is moved; the memory it is charged for stays where it was.
        if let Some(tracking) = with("pids").or_else(|| with("name=systemd")) {
            let tracking = tracking.clone();
            let hierarchies = first.into_iter().map(|(path, _)| path).collect();
            return Ok(Self { hierarchies, beside: second, tracking, version_2: false });
        }
        let Some(path) = second.into_iter().next() else {
            bail!("no control groups are mounted at /sys/fs/cgroup; the kubelet can't run without");
        };
        Ok(Self { hierarchies: vec![path.clone()], beside: Vec::new(), tracking: path, version_2: true })
    }

    pub(crate) fn version_2(&self) -> bool {
        self.version_2
    }

    /// The group of a daemon or of a node's own programs.
    pub(crate) fn daemon(&self, name: &str) -> PathBuf {
        self.tracking.join(NAME).join(DAEMONS).join(name)
    }

    /// Makes the group in which a kubelet keeps its pods.
    pub(crate) fn make_node(&self, name: &str) -> Result<()> {
        for hierarchy in &self.hierarchies {
            let group = hierarchy.join(NAME);
            let node = group.join(name);
            fs::create_dir_all(&node).with_context(|| format!("creating the control group {}", node.display()))?;
            if self.version_2 {
                for above in [hierarchy, &group] {
                    pass_on_controllers(above)?;
                }
            }
            // A new group of version 1 may use no processor until it is told which.
            for settings in ["cpuset.cpus", "cpuset.mems"] {
                let Ok(value) = fs::read_to_string(hierarchy.join(settings)) else { continue };
                for below in [&group, &node] {
                    let path = below.join(settings);
                    fs::write(&path, value.trim()).with_context(|| format!("writing {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Removes what a node's pods had. At a real boot they are gone, too, and a kubelet that finds some waits for each.
    pub(crate) fn empty_node(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        for top in self.groups().map(|group| group.join(name)) {
            while top.exists() {
                below(&top).iter().for_each(|group| drop(fs::remove_dir(group)));
                if Instant::now() > deadline {
                    bail!("the control group {} can't be removed: something of the node still runs", top.display());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The processes of a daemon, or of a node's own programs.
    pub(crate) fn processes(&self, daemon: &str) -> Vec<Pid> {
        processes(&self.daemon(daemon))
    }

    /// Ends every process of the cluster and removes its groups.
    pub(crate) fn remove_all(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut left = 0;
            for top in self.groups() {
                for group in below(&top) {
                    for pid in processes(&group) {
                        left += 1;
                        // It may have ended by itself, and others go down with the first process of their node.
                        let _ = kill(pid, Signal::SIGKILL);
                    }
                    // Refused while anything is in it.
                    let _ = fs::remove_dir(&group);
                }
            }
            let Some(remaining) = self.groups().find(|group| group.exists()) else { return Ok(()) };
            if Instant::now() > deadline {
                bail!(
                    "{left} processes of the cluster don't end although they were killed, or a control group can't be removed ({}); \
                     `ps -eo pid,stat,wchan,args` shows what they wait for",
                    remaining.display()
                );
            }
            // The kernel tells nobody when the last process has left a group of version 1.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether anything of a cluster is there.
    pub(crate) fn any(&self) -> bool {
        self.groups().any(|group| group.exists())
    }

    /// The cluster's group in every hierarchy, whether it exists or not.
    fn groups(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.hierarchies.iter().chain(&self.beside).map(|hierarchy| hierarchy.join(NAME))
    }
}

/// Puts the calling process into a group, which is made.
pub(crate) fn join(group: &Path) -> Result<()> {
    fs::create_dir_all(group).with_context(|| format!("creating the control group {}", group.display()))?;
    // Zero means the writer.
    fs::write(group.join("cgroup.procs"), "0").with_context(|| format!("joining the control group {}", group.display()))
}

fn pass_on_controllers(group: &Path) -> Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers")).context("reading the controllers")?;
    for controller in available.split_whitespace() {
        let path = group.join("cgroup.subtree_control");
        fs::write(&path, format!("+{controller}"))
            .with_context(|| format!("passing {controller} on in {}", path.display()))?;
    }
    Ok(())
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    // Zero stands for a process that this namespace can't see, and would mean this one's own group to `kill`.
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).map(Pid::from_raw).collect()
}

/// A group and those below it, the deepest first.
fn below(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    match fs::read_dir(group) {
        Ok(entries) => {
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found.extend(below(&entry.path()));
                }
            }
            found.push(group.to_owned());
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (),
        Err(_) => found.push(group.to_owned()),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_version_1_are_preferred_where_both_are_mounted() {
        let mounts = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = Cgroups::from_mounts(mounts).expect("there are some");
        assert!(!found.version_2());
        assert_eq!(found.hierarchies.len(), 2);
        assert_eq!(found.groups().last().as_deref(), Some(Path::new("/sys/fs/cgroup/unified/leno-cluster")));
        assert_eq!(found.daemon("etcd"), Path::new("/sys/fs/cgroup/pids/leno-cluster/daemons/etcd"));
    }

    #[test]
    fn version_2_alone_will_do() {
        let found = Cgroups::from_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").expect("there is one");
        assert!(found.version_2());
        assert_eq!(found.daemon("n1"), Path::new("/sys/fs/cgroup/leno-cluster/daemons/n1"));
        assert!(Cgroups::from_mounts("proc /proc proc rw 0 0\n").is_err());
    }
}
