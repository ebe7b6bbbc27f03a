//! Which pod a process belongs to, by the names of its control groups.
//!
//! The kubelet makes a group for each pod and the container runtime makes those of containers below it. Names differ by
//! driver:
//!
//! ```text
//! cgroupfs  /kubepods/burstable/pod0f5c…-…/CONTAINER
//! systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f5c…_….slice/cri-containerd-CONTAINER.scope
//! ```
//!
//! Either may be below another group (`/kubelet/kubepods/…`). Read from within another group's namespace, the path begins
//! with `/..` and the upper names may be missing.

/// Length of a uid that the API server gives, and of one that the kubelet gives a pod from a file of its own.
const UID: usize = 36;
const STATIC_UID: usize = 32;

/// The uid of the pod in whose control group a process is, by the text of its `/proc/PID/cgroup`; `None` for a process
/// outside pods.
///
/// A program in a pod may be allowed to make groups below its own and call them as it likes, so the outermost name counts.
#[must_use]
pub fn pod_uid(groups: &str) -> Option<String> {
    // HIERARCHY:CONTROLLERS:PATH, of which only the path may contain colons.
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(|path| {
        // There, a user who is logged in may make groups.
        let of_a_user = path.split('/').any(|name| name == "user.slice");
        if of_a_user { None } else { path.split('/').find_map(uid_in_name) }
    })
}

fn uid_in_name(name: &str) -> Option<String> {
    // `SLICE:RUNTIME:CONTAINER`, where kubelet and runtime disagree about the driver.
    let name = name.split(':').next().unwrap_or(name);
    let uid = match name.strip_suffix(".slice") {
        // systemd takes a dash for the sign between two levels, so the kubelet writes another.
        Some(slice) => {
            let (_, uid) = slice.rsplit_once("-pod").or_else(|| Some(("", slice.strip_prefix("pod")?)))?;
            uid.replace('_', "-")
        }
        None => name.strip_prefix("pod")?.to_owned(),
    };
    is_uid(&uid).then_some(uid)
}

fn is_uid(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match text.len() {
        UID => text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => is_digit(byte),
        }),
        STATIC_UID => text.bytes().all(is_digit),
        _ => false,
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
