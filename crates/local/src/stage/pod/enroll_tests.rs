use leno_capture::nft;
use leno_testkit::skips::{NEEDS_ROOT, skip};

use super::*;

/// Whether new connections wait, seen from the kernel's side.
async fn becomes(namespace: &NetworkNamespace, held: bool) {
    let is_held = || nft::list_tables(namespace).unwrap().iter().any(|info| info.table.name == "leno-hold");
    while is_held() != held {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connections_wait_for_a_proxy_only_while_one_may_come() {
    if !nix::unistd::geteuid().is_root() {
        return skip("connections_wait_for_a_proxy_only_while_one_may_come", NEEDS_ROOT);
    }
    let namespace = NetworkNamespace::create().unwrap();
    pod_hold::install(&namespace).unwrap();
    let (count, proxies) = watch::channel(1);
    let mut tasks = Tasks::default();
    tasks.spawn(hold(proxies, namespace.clone(), Gate::new()));
    let begun = tokio::time::Instant::now();
    // Away for a moment, and again.
    for _ in 0..2 {
        count.send_replace(0);
        tokio::time::sleep(HOLD / 2).await;
        count.send_replace(1);
        tokio::time::sleep(HOLD / 2).await;
    }
    becomes(&namespace, true).await;
    assert_eq!(begun.elapsed(), HOLD * 2, "nothing was changed meanwhile");
    count.send_replace(0);
    becomes(&namespace, false).await;
    assert!(begun.elapsed() >= HOLD * 3);
    count.send_replace(1);
    becomes(&namespace, true).await;
}
