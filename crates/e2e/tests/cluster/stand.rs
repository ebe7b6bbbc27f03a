//! What a test stands on: the cluster, or the reason that it is skipped.

use std::time::{Duration, Instant};

use leno_e2e::{Cluster, Found, Leno};
use leno_testkit::skips::skip;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A mesh changes the cluster for everybody: while one is installed and removed, no other test runs.
static MESH: RwLock<()> = RwLock::new(());

/// A cluster that is shared with other tests, or `None` after the line that says why the test is skipped.
pub(crate) fn cluster(test: &str) -> Option<(Cluster, RwLockReadGuard<'static, ()>)> {
    Some((find(test)?, MESH.read()))
}

/// A cluster for this test alone, and the program that installs a mesh in it.
pub(crate) fn cluster_and_leno(test: &str) -> Option<(Cluster, Leno, RwLockWriteGuard<'static, ()>)> {
    let cluster = find(test)?;
    let Some(leno) = Leno::find(&cluster) else {
        skip(
            test,
            "there is no program; `cargo xtask image` makes it, and `cargo xtask cluster load` takes its image into the cluster",
        );
        return None;
    };
    Some((cluster, leno, MESH.write()))
}

fn find(test: &str) -> Option<Cluster> {
    match Cluster::find().unwrap() {
        Found::Cluster(cluster) => Some(cluster),
        Found::None(why) => {
            skip(test, &why);
            None
        }
    }
}

/// Whether the machine is reserved for this test, so that what takes long takes long by itself.
pub(crate) fn is_measured() -> bool {
    std::env::var_os("LENO_SOAK").is_some()
}

/// Two nodes to put pods on; on a cluster of one node, that node twice.
pub(crate) fn two_nodes(cluster: &Cluster) -> (String, String) {
    let nodes = cluster.nodes();
    (nodes.first().unwrap().clone(), nodes.last().unwrap().clone())
}

/// Looks until it is so. Each look asks the cluster, which paces this.
pub(crate) fn comes_true(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !look() {
        assert!(Instant::now() < deadline, "three minutes have passed, and still not: {what}");
    }
}
