//! Files of the node, from within the agent's container.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use leno_capture::NetworkNamespace;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The network namespace at a path of the node, as a container runtime names it. `proc` is the node's: the root directory of
/// its first process is the node's. Links at the path are followed as the node would.
///
/// # Errors
/// If it does not exist or is no network namespace.
pub(crate) fn network_namespace(proc: &Path, path: &str) -> io::Result<NetworkNamespace> {
    let fd = open(proc, Path::new(path), OFlag::O_RDONLY)?;
    NetworkNamespace::from_fd(fd).map_err(io::Error::other)
}

/// Removes a directory of the node, unless something is in it. One that does not exist is not an error. The node's own path is
/// taken, because a container can't remove a directory that is mounted in it.
///
/// # Errors
/// If the directory above can't be written.
pub(crate) fn remove_if_empty(proc: &Path, directory: &Path) -> io::Result<()> {
    let Some((above, name)) = directory.parent().zip(directory.file_name()) else { return Ok(()) };
    let above = open(proc, above, OFlag::O_DIRECTORY)?;
    match unlinkat(&above, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a path of the node. Links are followed as the node would.
fn open(proc: &Path, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let root = proc.join("1/root");
    let root = File::open(&root).map_err(|error| {
        let hint = "the agent needs hostPID and the capability SYS_PTRACE";
        io::Error::new(
            error.kind(),
            format!("can't open the node's root directory {}: {error}; {hint}", root.display()),
        )
    })?;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let inside: PathBuf = path.strip_prefix("/").unwrap_or(path).to_owned();
    openat2(&root, &inside, how).map_err(|errno| {
        let text = format!("can't open the node's {}: {}", path.display(), errno.desc());
        io::Error::new(io::Error::from(errno).kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use leno_testkit::network::may_run;

    use super::*;

    #[test]
    fn directories_of_the_node_go_when_they_are_empty() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("1/root");
        for name in ["run/ours", "run/theirs"] {
            std::fs::create_dir_all(node.join(name)).unwrap();
        }
        std::fs::create_dir_all(node.join("var")).unwrap();
        symlink("/run", node.join("var/run")).unwrap();
        std::fs::write(node.join("run/theirs/file"), "").unwrap();
        for name in ["ours", "theirs", "missing"] {
            remove_if_empty(dir.path(), &Path::new("/var/run").join(name)).unwrap();
        }
        assert!(!node.join("run/ours").exists());
        assert!(node.join("run/theirs/file").exists());
    }

    /// A node's /var/run is a link to /run, which must not lead to the agent's own /run.
    #[test]
    fn links_are_followed_within_the_node() {
        if !may_run("links_are_followed_within_the_node") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("1/root");
        std::fs::create_dir_all(node.join("run/netns")).unwrap();
        std::fs::create_dir_all(node.join("var")).unwrap();
        symlink("/run", node.join("var/run")).unwrap();
        NetworkNamespace::create_named(&node.join("run/netns"), "pod").unwrap();
        let found = network_namespace(dir.path(), "/var/run/netns/pod").unwrap();
        assert_ne!(found, NetworkNamespace::current().unwrap());
        let missing = network_namespace(dir.path(), "/var/run/netns/other").unwrap_err();
        assert!(missing.to_string().contains("/var/run/netns/other"), "{missing}");
        NetworkNamespace::delete_named(&node.join("run/netns"), "pod").unwrap();
    }
}
