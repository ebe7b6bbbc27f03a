use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;

/// Output that can be watched while it is written.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    async fn becomes(&self, wanted: &str) {
        let seen = tokio::time::timeout(Duration::from_secs(20), async {
            while self.text() != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(seen.await.is_ok(), "{:?} instead of {wanted:?}", self.text());
    }
}

/// A stage that nobody plays.
fn dead() -> StageName {
    StageName::new("x").unwrap().in_dir(std::path::Path::new("/nonexistent"))
}

/// All there is.
const ALL: Wanted = Wanted { follow: false, tail: None, since: None };

fn log(dir: &std::path::Path, name: &str, prefixed: bool) -> LogFiles {
    let current = dir.join(format!("{name}.log"));
    let container = prefixed.then(|| name.to_owned());
    LogFiles { container, previous: logs::previous(&current), current }
}

#[tokio::test]
async fn one_container_is_printed_as_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let only = log(dir.path(), "a", false);
    std::fs::write(&only.previous, "one\n").unwrap();
    std::fs::write(&only.current, "two\nthr").unwrap();
    let mut page = Page::default();
    print_logs(&dead(), &[only], ALL, &mut page).await.unwrap();
    assert_eq!(page.text(), "one\ntwo\nthr");
}

#[tokio::test]
async fn lines_of_several_containers_say_whose_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let logs = [log(dir.path(), "a", true), log(dir.path(), "b", true), log(dir.path(), "silent", true)];
    std::fs::write(&logs[0].previous, "one\ntw").unwrap();
    std::fs::write(&logs[0].current, "o\n").unwrap();
    std::fs::write(&logs[1].current, "x\nunfinished").unwrap();
    let mut page = Page::default();
    print_logs(&dead(), &logs, ALL, &mut page).await.unwrap();
    assert_eq!(page.text(), "[a] one\n[a] two\n[b] x\n[b] unfinished\n");
}

/// A stage that somebody plays for as long as the lock is held.
fn played(base: &std::path::Path) -> (StageName, Lock) {
    let stage = StageName::new("x").unwrap().in_dir(base);
    std::fs::create_dir(stage.run_dir()).unwrap();
    let lock = Lock::take(&stage.run_dir(), &stage).unwrap();
    (stage, lock)
}

const FOLLOW: Wanted = Wanted { follow: true, tail: None, since: None };

#[tokio::test]
async fn the_last_lines_are_those_of_both_parts() {
    let dir = tempfile::tempdir().unwrap();
    let only = log(dir.path(), "a", false);
    std::fs::write(&only.previous, "one\ntwo\n").unwrap();
    std::fs::write(&only.current, "three\nfo").unwrap();
    for (lines, printed) in [(0, ""), (1, "fo"), (2, "three\nfo"), (3, "two\nthree\nfo"), (9, "one\ntwo\nthree\nfo")] {
        let mut page = Page::default();
        let wanted = Wanted { tail: Some(lines), ..ALL };
        print_logs(&dead(), std::slice::from_ref(&only), wanted, &mut page).await.unwrap();
        assert_eq!(page.text(), printed, "{lines}");
    }
}

#[tokio::test]
async fn what_was_written_before_a_time_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let only = log(dir.path(), "a", false);
    logs::Log::open(&only.current).unwrap().write(b"now\n").unwrap();
    for (since, printed) in
        [(SystemTime::now() - Duration::from_secs(60), "now\n"), (SystemTime::now() + Duration::from_secs(60), "")]
    {
        let mut page = Page::default();
        let wanted = Wanted { since: Some(since), ..ALL };
        print_logs(&dead(), std::slice::from_ref(&only), wanted, &mut page).await.unwrap();
        assert_eq!(page.text(), printed);
    }
}

#[tokio::test]
async fn following_ends_with_the_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, lock) = played(dir.path());
    let only = log(dir.path(), "a", false);
    std::fs::write(&only.current, "one\ntwo\n").unwrap();
    let page = Page::default();
    let (mut out, logs) = (page.clone(), vec![only.clone()]);
    let wanted = Wanted { tail: Some(1), ..FOLLOW };
    let following = tokio::spawn(async move { print_logs(&stage, &logs, wanted, &mut out).await });
    page.becomes("two\n").await;
    std::fs::write(&only.current, "one\ntwo\nlast words\n").unwrap();
    page.becomes("two\nlast words\n").await;
    drop(lock);
    tokio::time::timeout(Duration::from_secs(20), following).await.expect("ends").unwrap().unwrap();
}

#[tokio::test]
async fn following_sees_new_lines_new_files_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, _lock) = played(dir.path());
    let pod = dir.path().join("pod");
    std::fs::create_dir(&pod).unwrap();
    let logs = vec![log(&pod, "a", true), log(&pod, "b", true)];
    let (first, second) = (logs[0].clone(), logs[1].clone());
    std::fs::write(&first.current, "one\n").unwrap();
    let page = Page::default();
    let mut out = page.clone();
    let following = tokio::spawn(async move { print_logs(&stage, &logs, FOLLOW, &mut out).await });
    page.becomes("[a] one\n").await;
    std::fs::write(&second.current, "x\n").unwrap();
    page.becomes("[a] one\n[b] x\n").await;
    std::fs::rename(&first.current, &first.previous).unwrap();
    std::fs::write(&first.current, "two\n").unwrap();
    page.becomes("[a] one\n[b] x\n[a] two\n").await;
    std::fs::remove_dir_all(&pod).unwrap();
    tokio::time::timeout(Duration::from_secs(20), following).await.expect("ends with the pod").unwrap().unwrap();
}
