//! Takes rights from a pod before its first program runs: those with which a process could leave the mesh, and the view
//! of the stage's own files.
//!
//! A pod's processes are root over the machine's files, as everything on the stage is; this keeps
//! programs from slipping past the proxy, by accident or by trying.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

/// Capabilities a pod keeps (linux/capability.h): what containerd gives a container, without
/// `NET_RAW`. That one allows `SO_MARK` since Linux 5.17, and the proxy's mark is what lets a
/// packet past the redirection.
const KEPT: [u32; 13] = [
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    3,  // FOWNER
    4,  // FSETID
    5,  // KILL
    6,  // SETGID
    7,  // SETUID
    8,  // SETPCAP
    10, // NET_BIND_SERVICE
    18, // SYS_CHROOT
    27, // MKNOD
    29, // AUDIT_WRITE
    31, // SETFCAP
];

/// Parts of `/proc` that concern the machine; container runtimes make them read-only as well.
const MACHINES: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Covers directories of the stage with empty ones, except for what is the pod's own below them.
///
/// # Errors
/// If a directory can't be covered: then the pod must not run.
pub(crate) fn hide(hidden: &[String], own: &[String]) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut kept: Vec<(OwnedFd, &str)> = Vec::new();
    for dir in own {
        kept.push((open(dir.as_str(), flags, Mode::empty())?, dir));
    }
    let covered: Vec<_> = hidden.iter().filter(|dir| Path::new(dir).is_dir()).collect();
    let none = None::<&str>;
    let base = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for dir in &covered {
        mount(Some("tmpfs"), dir.as_str(), Some("tmpfs"), base, Some("mode=0755,size=64k"))?;
    }
    for (fd, dir) in &kept {
        fs::create_dir_all(dir)?;
        let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
        mount(Some(source.as_str()), *dir, none, MsFlags::MS_BIND, none)?;
    }
    for dir in covered {
        let flags = base | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(none, dir.as_str(), none, flags, none)?;
    }
    Ok(())
}

/// Makes the machine's settings in the pod's own `/proc` read-only: a uid of 0 alone is enough to
/// write many of them. Best effort, for they protect the machine and not the mesh.
pub(crate) fn protect_settings() {
    let none = None::<&str>;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    for path in MACHINES {
        if mount(Some(path), path, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).is_ok() {
            let _ = mount(none, path, none, flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none);
        }
    }
}

/// Gives up all capabilities but [`KEPT`], for this process and whatever it will start, for good.
///
/// # Errors
/// If the kernel refuses: then the pod must not run.
pub(crate) fn give_up_rights() -> io::Result<()> {
    ignore_file_rights();
    nix::sys::prctl::set_no_new_privs()?;
    // Not to be traced by the pod's other processes: its descriptor is the way to the supervisor.
    nix::sys::prctl::set_dumpable(false)?;
    limit_capabilities()
}

/// Makes the kernel ignore set-user-id bits and capabilities of files. They would add no right, but a file with a
/// capability that the pod may not have (Debian's `ping`) could not be started at all. Kernels before 5.12 refuse this;
/// there, such files fail.
#[allow(unsafe_code)]
fn ignore_file_rights() {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_NOSUID, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: a live C string and a live structure with its size; the kernel only reads both.
    unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size,
        )
    };
}

/// Header and data of capset(2), version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}
const VERSION_3: u32 = 0x2008_0522;

#[allow(unsafe_code)]
fn limit_capabilities() -> io::Result<()> {
    // First the bounds, which is itself a privilege: what root may regain by exec.
    for capability in (0..64).filter(|capability| !KEPT.contains(capability)) {
        // SAFETY: plain integers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) } != 0 {
            let reason = io::Error::last_os_error();
            // Beyond the last capability that this kernel knows.
            if reason.raw_os_error() == Some(libc::EINVAL) && capability > 31 {
                break;
            }
            return Err(reason);
        }
    }
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    let call = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: a header and the two structures that version 3 asks for, all live and laid out as in C.
    call(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    let kept = KEPT.iter().fold(0, |mask, capability| mask | 1_u32 << capability) & sets[0].permitted;
    sets = [Sets { effective: kept, permitted: kept, inheritable: 0 }, Sets::default()];
    // SAFETY: as above.
    call(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })
}
