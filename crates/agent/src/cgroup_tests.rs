use proptest::prelude::*;

use super::*;

const POD: &str = "0f5c1f0e-4c1b-4c57-9b0a-8d3f5c2b7a61";
const UNDERSCORES: &str = "0f5c1f0e_4c1b_4c57_9b0a_8d3f5c2b7a61";
const OTHER: &str = "11111111-2222-4333-8444-555555555555";
const CONTAINER: &str = "5f2d8c7e4b1a09f8e7d6c5b4a392817060514233241506f7e8d9cabb8c7d6e5f";

#[test]
fn every_driver_and_version() {
    for path in [
        format!("/kubepods/burstable/pod{POD}/{CONTAINER}"),
        format!("/kubepods/pod{POD}"),
        format!(
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        format!("/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/crio-{CONTAINER}.scope/container"),
        format!(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        format!("/docker/{CONTAINER}/kubelet/kubepods/besteffort/pod{POD}/{CONTAINER}"),
        format!("/k8s/n1/kubepods/burstable/pod{POD}/{CONTAINER}"),
        // From within a group's namespace.
        format!("/../../pod{POD}/{CONTAINER}"),
        format!("/../../kubepods-burstable-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope"),
        format!(
            "/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORES}.slice:cri-containerd:{CONTAINER}"
        ),
    ] {
        let unified = format!("0::{path}\n");
        assert_eq!(pod_uid(&unified).as_deref(), Some(POD), "{path}");
        let separate = format!("13:misc:/\n12:pids:{path}\n11:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/\n");
        assert_eq!(pod_uid(&separate).as_deref(), Some(POD), "{path}");
    }
}

#[test]
fn a_pod_from_a_file_of_the_kubelets_has_a_shorter_uid() {
    let uid = "9a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d";
    assert_eq!(pod_uid(&format!("0::/kubepods/burstable/pod{uid}/{CONTAINER}\n")).as_deref(), Some(uid));
}

#[test]
fn what_is_no_pod() {
    for path in [
        "/",
        "/init.scope",
        "/system.slice/sshd.service",
        "/kubepods",
        "/kubepods/burstable/podinfo",
        "/podman/pods",
        &format!("/kubepods/POD{POD}"),
        &format!("/kubepods/pod{}", POD.to_uppercase()),
        &format!("/kubepods/pod{POD}x"),
        &format!("/kubepods/{POD}"),
        &format!("/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}"),
    ] {
        assert_eq!(pod_uid(&format!("0::{path}\n")), None, "{path}");
    }
    for broken in ["", "\n\n", "0", "0:", "::", &format!("pod{POD}")] {
        assert_eq!(pod_uid(broken), None, "{broken}");
    }
}

/// A container that may write its own groups must not pass for another pod's.
#[test]
fn the_outermost_name_counts() {
    let path = format!("0::/kubepods/burstable/pod{POD}/{CONTAINER}/kubepods/pod{OTHER}/x\n");
    assert_eq!(pod_uid(&path).as_deref(), Some(POD));
    let path = format!("0::/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/x.scope/kubepods-pod{OTHER}.slice\n");
    assert_eq!(pod_uid(&path).as_deref(), Some(POD));
}

proptest! {
    #[test]
    fn whatever_is_below_the_pod_changes_nothing(rest in "[a-z0-9:/._-]{0,40}") {
        let found = pod_uid(&format!("0::/kubepods/pod{POD}/{rest}\n"));
        prop_assert_eq!(found.as_deref(), Some(POD));
    }

    #[test]
    fn any_text_is_read(text in "[\\PC\n]{0,200}") {
        if let Some(uid) = pod_uid(&text) {
            prop_assert!(is_uid(&uid));
        }
    }
}
