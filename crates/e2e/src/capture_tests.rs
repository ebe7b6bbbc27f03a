//! The scripts of a capture, with files and a process that stand for those of `tcpdump`: no failure looks as if nothing was seen.

use std::process::{Child, Command, Stdio};

use super::*;

/// What a capture has left so far.
struct Played {
    dir: tempfile::TempDir,
    tcpdump: Child,
}

impl Played {
    fn begin(packets: &str, said: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tcpdump = Command::new("sleep").arg("600").spawn().unwrap();
        let played = Self { dir, tcpdump };
        for (ending, text) in [("", packets), (".log", said), (".pid", &played.tcpdump.id().to_string())] {
            std::fs::write(played.file() + ending, text).unwrap();
        }
        played
    }

    fn file(&self) -> String {
        self.dir.path().join("capture").display().to_string()
    }

    fn kill(&mut self) {
        self.tcpdump.kill().unwrap();
        self.tcpdump.wait().unwrap();
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
    }
}

/// What a script prints, or that it fails.
fn run(script: &str) -> Option<String> {
    let output = Command::new("sh").args(["-c", script]).stderr(Stdio::null()).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn count(played: &Played, word: &str) -> Option<String> {
    run(&(still_captures(&played.file()) + &search(&played.file(), word)))
}

#[test]
fn lines_with_a_word_are_counted() {
    let played = Played::begin("a word\nanother\nthe word again\n", "");
    assert_eq!(count(&played, "word").as_deref(), Some("2\n"));
    assert_eq!(count(&played, "secret").as_deref(), Some("0\n"));
}

#[test]
fn a_capture_that_has_ended_has_not_seen_nothing() {
    let mut played = Played::begin("a word\n", "tcpdump: listening on any\n");
    played.kill();
    assert_eq!(count(&played, "secret"), None);
    assert_eq!(run(&end(&played.file())), None);
}

#[test]
fn a_capture_that_can_not_be_read_has_not_seen_nothing() {
    let played = Played::begin("a word\n", "");
    std::fs::remove_file(played.file()).unwrap();
    assert_eq!(count(&played, "secret"), None);
}

#[test]
fn a_capture_that_has_missed_packets_has_not_seen_nothing() {
    for (dropped, complete) in [("0", true), ("10", false), ("3", false)] {
        let said = format!("9 packets captured\n12 packets received by filter\n{dropped} packets dropped by kernel\n");
        assert_eq!(run(&end(&Played::begin("a word\n", &said).file())).is_some(), complete, "{said}");
    }
    let said = "0 packets dropped by kernel\n7 packets dropped by interface\n";
    assert_eq!(run(&end(&Played::begin("a word\n", said).file())), None);
}
