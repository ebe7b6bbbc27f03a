#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leno_capture::NamespaceId;
use leno_testkit::network::may_run;

use super::*;

/// The namespace that a thread of this process is in.
fn namespace_of(thread: i32) -> NamespaceId {
    NetworkNamespace::from_path(format!("/proc/self/task/{thread}/ns/net")).unwrap().id()
}

fn keeper() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn a_worker_that_has_opened_a_pods_socket_is_home_before_it_waits() {
    if !may_run("a_worker_that_has_opened_a_pods_socket_is_home_before_it_waits") {
        return;
    }
    let keeper = keeper();
    let workers = Workers::start(1, || (), keeper.handle()).unwrap();
    let home = NetworkNamespace::current().unwrap().id();
    let pod = NetworkNamespace::create().unwrap();
    let (tell, told) = mpsc::channel();
    workers.all()[0].spawn({
        let pod = pod.clone();
        async move {
            let this = nix::unistd::gettid().as_raw();
            let socket = pod.run(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
            let visiting = namespace_of(this);
            // Another turn of the same thread, which has not waited yet.
            tokio::task::yield_now().await;
            tell.send((this, visiting, socket)).unwrap();
        }
    });
    let (thread, visiting, _socket) = told.recv().unwrap();
    assert_eq!(visiting, pod.id(), "it stays for the next socket");
    let begun = Instant::now();
    while namespace_of(thread) != home {
        assert!(begun.elapsed() < Duration::from_secs(20), "it waits in the pod's namespace");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_handed_to_a_worker_runs_on_its_thread() {
    let keeper = keeper();
    let workers = Workers::start(2, || (), keeper.handle()).unwrap();
    let (tell, told) = mpsc::channel();
    for (index, worker) in workers.all().iter().enumerate() {
        let tell = tell.clone();
        let task = async move {
            timers::sleep(Duration::from_millis(1)).await;
            tell.send((index, std::thread::current().name().map(str::to_owned))).unwrap();
        };
        worker.spawn(task);
    }
    let mut ran = [told.recv().unwrap(), told.recv().unwrap()];
    ran.sort();
    assert_eq!(ran, [(0, Some("worker-0".to_owned())), (1, Some("worker-1".to_owned()))]);
}
