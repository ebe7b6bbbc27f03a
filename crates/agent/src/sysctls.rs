//! Kernel settings of pods can be changed although container runtimes mount `/proc/sys` read-only.

use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};

const SYSCTLS: &str = "/proc/sys";

/// Makes `/proc/sys` writable for this process, in a mount namespace of its own, if it is read-only. Call it before any
/// other thread exists. Only settings of the pods' own network namespaces are written.
///
/// # Errors
/// Without CAP_SYS_ADMIN, or where AppArmor or SELinux forbids it.
pub fn make_writable() -> io::Result<()> {
    if !statvfs(SYSCTLS)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    // What the node mounts is still seen here; what is done here is not seen there.
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing)?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(nothing, SYSCTLS, nothing, flags, nothing)?;
    Ok(())
}
