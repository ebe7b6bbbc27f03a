use std::os::unix::fs::symlink;

use leno_testkit::network::may_run;
use tempfile::TempDir;

use super::*;

const POD: &str = "0f5c1f0e-4c1b-4c57-9b0a-8d3f5c2b7a61";
const OTHER: &str = "11111111-2222-4333-8444-555555555555";

/// A made-up /proc, whose namespaces are real.
struct Node {
    dir: TempDir,
    names: TempDir,
    host: NetworkNamespace,
}

impl Node {
    fn new() -> Self {
        let host = NetworkNamespace::create().unwrap();
        Self { dir: tempfile::tempdir().unwrap(), names: tempfile::tempdir().unwrap(), host }
    }

    fn process(&self, pid: u32, started: u64, group: &str, namespace: &NetworkNamespace) {
        let dir = self.dir.path().join(pid.to_string());
        fs::create_dir_all(dir.join("ns")).unwrap();
        fs::write(dir.join("cgroup"), format!("0::{group}\n")).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(dir.join("stat"), format!("{pid} (a) b) S {zeros}{started} 0\n")).unwrap();
        // A descriptor of this process leads there, as the entry in the real directory does.
        let fd = namespace.try_clone_fd().unwrap();
        let held = self.names.path().join(pid.to_string());
        symlink(format!("/proc/self/fd/{}", std::os::fd::IntoRawFd::into_raw_fd(fd)), &held).unwrap();
        symlink(&held, dir.join("ns/net")).unwrap();
    }

    fn finder(&self) -> Finder {
        Finder::new(self.dir.path().to_owned(), self.host.id(), Gate::default())
    }
}

fn pod(address: &str) -> NetworkNamespace {
    let namespace = NetworkNamespace::create().unwrap();
    links::add_address(&namespace, "lo", address.parse().unwrap(), 32).unwrap();
    namespace
}

#[tokio::test]
async fn the_oldest_process_in_the_pods_own_namespace_counts() {
    if !may_run("the_oldest_process_in_the_pods_own_namespace_counts") {
        return;
    }
    let node = Node::new();
    let (real, nested, other) = (pod("10.1.0.4"), pod("10.1.0.4"), pod("10.1.0.5"));
    fs::write(node.dir.path().join("meminfo"), "").unwrap();
    node.process(1, 1, "/init.scope", &node.host);
    node.process(40, 700, &format!("/kubepods/pod{POD}/c1"), &nested);
    node.process(41, 500, &format!("/kubepods/pod{POD}/c0"), &real);
    node.process(42, 400, &format!("/kubepods/pod{POD}/c2"), &node.host);
    node.process(50, 100, &format!("/kubepods/pod{OTHER}/c0"), &other);
    let finder = node.finder();
    let address = ["10.1.0.4".parse().unwrap()];
    assert_eq!(finder.find(POD, &address).await, Some(real));
    assert_eq!(finder.find(OTHER, &[]).await, Some(other));
    // What has another address is not this pod's, whatever its groups are called.
    assert_eq!(finder.find(OTHER, &address).await, None);
    assert_eq!(finder.find("22222222-2222-4333-8444-555555555555", &[]).await, None);
    assert_eq!(finder.pods().await, [POD.to_owned(), OTHER.to_owned()].into());
}

#[tokio::test]
async fn a_pod_that_comes_later_is_found_later() {
    if !may_run("a_pod_that_comes_later_is_found_later") {
        return;
    }
    let node = Node::new();
    let finder = node.finder();
    assert_eq!(finder.find(POD, &[]).await, None);
    let real = pod("10.1.0.4");
    node.process(41, 500, &format!("/kubepods/pod{POD}/c0"), &real);
    assert_eq!(finder.find(POD, &[]).await, Some(real));
}
