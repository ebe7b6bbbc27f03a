//! A node agent without descriptors: alone in its process, for the limit is the process's.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs::File;
use std::time::Duration;

use leno_capture::zds::Agent;
use leno_proto::zds::{Version, ZdsHello};
use leno_telemetry::accepting;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prost::Message;
use socket2::{Domain, SockAddr, Socket, Type};

const SOON: Duration = Duration::from_secs(10);

/// Takes all descriptors there are, and keeps them from growing more.
fn take_all_descriptors() -> Vec<File> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[tokio::test]
async fn without_descriptors_the_agent_pauses_is_counted_and_goes_on_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let agent = Agent::bind(&path).unwrap();
    let proxy = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let taken = take_all_descriptors();
    proxy.connect(&SockAddr::unix(&path).unwrap()).unwrap();
    proxy.send(&ZdsHello { version: Version::V1.into() }.encode_to_vec()).unwrap();
    let pauses = async {
        while accepting::pauses() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, pauses).await.expect("its pauses are counted");
    drop(taken);
    // It is let in, and told that these are all pods there are.
    proxy.set_read_timeout(Some(SOON)).unwrap();
    let told = tokio::task::spawn_blocking(move || proxy.recv(&mut [std::mem::MaybeUninit::uninit(); 64]));
    assert!(told.await.unwrap().expect("it hears of the pods") > 0);
    drop(agent);
}
