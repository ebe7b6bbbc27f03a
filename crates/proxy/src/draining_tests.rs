use super::*;

#[test]
fn the_next_proxy_reads_what_those_that_drain_say_and_removes_what_killed_ones_left() {
    let dir = tempfile::tempdir().unwrap();
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_764_000_000);
    let told = Told::begin(dir.path(), until).unwrap();
    assert_eq!(others(dir.path()), Vec::<Value>::new(), "it has said nothing yet");
    told.say(12_345).unwrap();
    told.say(7).unwrap();
    let killed = dir.path().join("draining.dead");
    fs::write(&killed, "{\"connections\": 9}").unwrap();
    fs::write(dir.path().join("mesh"), "not one of these").unwrap();
    assert_eq!(others(dir.path()), [json!({"connections": 7, "until": "2025-11-24T16:00:00Z"})]);
    assert!(!killed.exists(), "nobody has it locked");
    drop(told);
    assert_eq!(others(dir.path()), Vec::<Value>::new());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file that is none of these");
}

#[tokio::test]
async fn connections_that_end_meanwhile_are_not_counted_on() {
    let dir = tempfile::tempdir().unwrap();
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(2));
    let count = left.clone();
    let told = Told::begin(dir.path(), SystemTime::now()).unwrap();
    let saying = tokio::spawn(told.keep_saying(move || count.load(std::sync::atomic::Ordering::Relaxed)));
    let said = async |wanted: u64| {
        while !others(dir.path()).iter().any(|told| told["connections"] == wanted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), said(2)).await.unwrap();
    left.store(1, std::sync::atomic::Ordering::Relaxed);
    tokio::time::timeout(Duration::from_secs(20), said(1)).await.unwrap();
    saying.abort();
    let _ = saying.await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
