use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::*;

#[tokio::test]
async fn where_accepting_fails_it_pauses_and_is_counted() {
    // Readable, but no listener: accepting fails each time.
    let (stream, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    other.write_all(b"x").unwrap();
    stream.set_nonblocking(true).unwrap();
    let listener = UnixListener::from_std(OwnedFd::from(stream).into()).unwrap();
    let before = accepting::pauses();
    let begun = std::time::Instant::now();
    let counted = async {
        while accepting::pauses() < before + 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = accept(&listener) => panic!("nobody has connected"),
        counted = tokio::time::timeout(Duration::from_secs(10), counted) => counted.expect("pauses are counted"),
    }
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
}
