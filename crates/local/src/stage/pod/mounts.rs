//! Mounting volumes at paths that the machine may not have, without making them there: a pod shares the machine's files, and
//! nothing may be left in them. Where a directory is missing, the nearest one that exists is covered in the pod's own mount
//! namespace with an empty file system in which everything is found that it held, and the missing directory besides.
//!
//! Runs in the pod's first process, before any program does.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, chroot, pivot_root};
use serde::{Deserialize, Serialize};

/// Most entries a directory may have that is covered: each becomes a mount.
const MOST_ENTRIES: usize = 4096;

/// A volume in a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// File or directory outside of the pod.
    pub source: String,
    /// Path in the pod.
    pub target: String,
    pub read_only: bool,
}

const NONE: Option<&str> = None;

/// Mounts them in this order. `root` is an empty directory that may become the pod's root directory.
///
/// # Errors
/// Which volume can't be mounted, and why: then the pod must not run.
pub(crate) fn mount_all(mounts: &[Mount], root: &str) -> Result<(), String> {
    // First of all: what is opened before belongs to the old root, and can't be mounted in the new one.
    if mounts.iter().any(|volume| nearest(Path::new(&volume.target)) == Path::new("/")) {
        new_root(Path::new(root))
            .map_err(|reason| format!("cannot make a root directory for the pod's volumes: {reason}"))?;
    }
    // Before anything is covered that they may be below.
    let mut sources = Vec::new();
    for volume in mounts {
        let opened = open(volume.source.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        sources.push(opened.map_err(|reason| told(volume, &reason.into()))?);
    }
    for (volume, source) in mounts.iter().zip(&sources) {
        mount_one(volume, source).map_err(|reason| told(volume, &reason))?;
    }
    Ok(())
}

fn told(volume: &Mount, reason: &io::Error) -> String {
    format!("cannot mount a volume at {}: {reason}", volume.target)
}

fn mount_one(volume: &Mount, source: &OwnedFd) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    let is_dir = fs::metadata(&source)?.is_dir();
    let target = Path::new(&volume.target);
    make_room(target, is_dir)?;
    let there = fs::metadata(target)?.is_dir();
    if there != is_dir {
        let (is, wants) = if there { ("a directory", "a file") } else { ("a file", "a directory") };
        return Err(io::Error::other(format!("{is} is there on this machine, and the volume is {wants}")));
    }
    mount(Some(source.as_str()), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    if volume.read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        let kept = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        // In a user namespace the flags of the file system that it came from can't be dropped.
        let with = |more: MsFlags| mount(NONE, target, NONE, flags | more, NONE);
        with(MsFlags::empty()).or_else(|_| with(kept)).or_else(|_| with(kept | MsFlags::MS_NOEXEC))?;
    }
    Ok(())
}

/// The nearest directory above a path that exists; the path itself if it does.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// Has a directory or a file be at `target` in this mount namespace, if there is none.
fn make_room(target: &Path, is_dir: bool) -> io::Result<()> {
    let nearest = nearest(target);
    if nearest == target {
        return Ok(());
    }
    if !is_covered(nearest)? {
        cover(nearest)?;
    }
    let directory = if is_dir { target } else { target.parent().unwrap_or(nearest) };
    fs::create_dir_all(directory)?;
    if !is_dir {
        fs::File::create(target)?;
    }
    Ok(())
}

/// Name that the file systems have which are mounted here, to know them again.
const NAME: &str = "leno-volumes";

/// Whether a directory is in a file system that was mounted here, so that more can be made in it.
fn is_covered(directory: &Path) -> io::Result<bool> {
    let here = nix::sys::stat::stat(directory)?.st_dev;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    // Fields: id, parent, major:minor, root, mount point, ..., "-", type, source, ...
    Ok(table.lines().filter(|line| line.contains(&format!(" tmpfs {NAME} "))).any(|line| {
        let device = line.split(' ').nth(2).unwrap_or_default();
        device == format!("{}:{}", nix::sys::stat::major(here), nix::sys::stat::minor(here))
    }))
}

/// Covers a directory with an empty file system in which everything is found that it holds.
fn cover(directory: &Path) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let behind = open(directory, flags, Mode::empty())?;
    let mode = nix::sys::stat::fstat(&behind)?.st_mode & 0o7777;
    mount_empty(directory, mode)?;
    let behind = PathBuf::from(format!("/proc/self/fd/{}", behind.as_raw_fd()));
    show_all(&behind, directory)
}

/// Makes `root` the root directory, with everything in it that the old one holds.
fn new_root(root: &Path) -> io::Result<()> {
    mount_empty(root, 0o755)?;
    // What is mounted below it must not be found again below itself.
    mount(NONE, root, NONE, MsFlags::MS_UNBINDABLE, NONE)?;
    show_all(Path::new("/"), root)?;
    chdir(root)?;
    if pivot_root(".", ".").is_ok() {
        // The old root lies over the new one.
        umount2(".", MntFlags::MNT_DETACH)?;
    } else {
        // The very first file system of a machine can't be exchanged.
        chroot(".")?;
    }
    chdir("/")?;
    Ok(())
}

fn mount_empty(at: &Path, mode: libc::mode_t) -> io::Result<()> {
    // What programs write there takes memory, and is gone with the pod.
    let options = format!("mode={mode:o},size=256m");
    Ok(mount(Some(NAME), at, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options.as_str()))?)
}

/// Has every entry of the directory `from` be found in the directory `to` as well.
fn show_all(from: &Path, to: &Path) -> io::Result<()> {
    let entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    if entries.len() > MOST_ENTRIES {
        let text = format!("the directory it is to be made in has {} entries, more than {MOST_ENTRIES}", entries.len());
        return Err(io::Error::other(text));
    }
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::File::create(&target)?;
        }
        mount(Some(&source), &target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    }
    Ok(())
}
