//! Becoming root over namespaces of one's own when one is not root on the machine.

use std::fs;
use std::io;
use std::sync::OnceLock;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::AccessFlags;

use crate::Error;

static OUTER: OnceLock<u32> = OnceLock::new();
static MACHINE_ROOT: OnceLock<bool> = OnceLock::new();

/// The user who runs this process, as it was before [`acquire`] made it root of its own
/// namespaces.
pub fn outer_uid() -> u32 {
    *OUTER.get_or_init(|| nix::unistd::getuid().as_raw())
}

/// Whether this process may make network namespaces that the whole machine sees: as root, and not
/// one of a user namespace that somebody else made, who may write nothing but that user's files.
pub fn is_machine_root() -> bool {
    *MACHINE_ROOT.get_or_init(|| outer_uid() == 0 && nix::unistd::access("/run", AccessFlags::W_OK).is_ok())
}

/// Makes this process root of new user, mount and network namespaces unless it is the machine's
/// root already.
/// Must be called before the process has a second thread: the kernel refuses a user namespace to
/// a process with several.
///
/// # Errors
/// [`Error::Privilege`] with the setting that forbids it and what to do instead.
pub fn acquire() -> Result<(), Error> {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let _ = OUTER.set(uid.as_raw());
    check_root_directory()?;
    if is_machine_root() {
        return check_root();
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|reason| Error::Privilege(forbidden(reason.into())))?;
    let map = || -> io::Result<()> {
        // Without this the kernel lets nobody but root write a group map (user_namespaces(7)).
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
    };
    map().map_err(|reason| Error::Privilege(forbidden(reason)))?;
    private_mounts()
}

/// Checks that `/` is a mount point. The mounts below it are made private for each pod, and the kernel does that with nothing else.
fn check_root_directory() -> Result<(), Error> {
    // Without /proc, or in a form that this does not know, the kernel has the last word.
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    // The fifth field is the mount point, as this process sees it.
    if mounts.lines().any(|line| line.split(' ').nth(4) == Some("/")) {
        return Ok(());
    }
    Err(Error::Privilege(
        "the root directory of this process is no mount point, as in a plain chroot; pods could not be given mounts of their own. \
         Make it one: `mount --rbind DIR DIR` before `chroot DIR`, or run this outside of the chroot"
            .to_owned(),
    ))
}

/// Checks root's rights: namespaces may be unavailable in a container without the capability.
fn check_root() -> Result<(), Error> {
    let here = fs::File::open("/proc/self/ns/net").map_err(Error::io("cannot open /proc/self/ns/net"))?;
    nix::sched::setns(&here, CloneFlags::CLONE_NEWNET).map_err(|_| {
        Error::Privilege(
            "this root may not use network namespaces (CAP_SYS_ADMIN is missing): start the container with \
             --privileged, or run as an unprivileged user where user namespaces are allowed"
                .to_owned(),
        )
    })
}

fn private_mounts() -> Result<(), Error> {
    use nix::mount::{MsFlags, mount};
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(Error::errno("cannot make the mounts of the new namespace private"))
}

/// Why user namespaces are not allowed here, as far as the kernel's settings tell.
fn forbidden(reason: io::Error) -> String {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut causes = Vec::new();
    if read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        causes.push("`sudo sysctl kernel.unprivileged_userns_clone=1`");
    }
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        causes.push("`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`");
    }
    if read("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        causes.push("`sudo sysctl user.max_user_namespaces=10000`");
    }
    if read("/proc/sys/user/max_net_namespaces").as_deref() == Some("0") {
        causes.push("`sudo sysctl user.max_net_namespaces=10000`");
    }
    if causes.is_empty() {
        format!(
            "this user may not make namespaces ({reason}); run it with `sudo`, or outside the container or sandbox \
             that forbids it"
        )
    } else {
        format!(
            "this user may not make namespaces ({reason}); run it with `sudo`, or allow it with {}",
            causes.join(" and ")
        )
    }
}
