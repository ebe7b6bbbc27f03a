use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::cluster::plan::Families;

#[test]
fn keys_are_their_owners_alone_and_kubeconfigs_hold_all_they_need() {
    let directory = tempfile::tempdir().unwrap();
    let identities = Identities::of(&Layout::of(directory.path()));
    identities.make(&Plan { nodes: 2, families: Families::Dual }).unwrap();
    let (mut keys, mut certificates) = (0, 0);
    for entry in fs::read_dir(directory.path().join("cluster/pki")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        if name.ends_with(".key") || name.ends_with(".kubeconfig") {
            assert_eq!(mode, 0o600, "{name}");
            keys += 1;
        } else {
            certificates += 1;
        }
    }
    assert!(keys > 10 && certificates > 10, "{keys} {certificates}");
    let text = fs::read_to_string(identities.kubeconfig("n2")).unwrap();
    assert!(
        text.contains("certificate-authority-data: LS0t") && !text.contains('/') || text.contains(API_SERVER),
        "{text}"
    );
}

#[test]
fn a_node_is_called_what_the_node_authorizer_expects() {
    let all = subjects(&Plan { nodes: 1, families: Families::Ipv4 }).unwrap();
    let node = all.iter().find(|subject| subject.file == "n1").unwrap();
    assert_eq!((node.name.as_str(), node.group), ("system:node:n1", Some("system:nodes")));
}
