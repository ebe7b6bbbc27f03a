//! What README and `docs/` show is what a user sees: every `console` block is run here.
//!
//! In such a block a line `$ COMMAND` is run, and the lines below it must be what it prints. `...` stands for any lines, `…` for any text
//! within a line. Numbers, addresses and the endings of pods' names may differ ([`page_text`](leno_testkit::page_text)). Blocks after `<!-- on a cluster -->`
//! are run by the tests in `crates/e2e`.

use std::path::{Path, PathBuf};
use std::process::Command;

use leno_testkit::page_text::{Place, Step, matches, steps};

use crate::stage::{eventually, leno, run, skip};

/// The commands of one page act on their own stage. They run in the project's root.
struct Session {
    stage: String,
    root: PathBuf,
}

impl Session {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = leno();
        command.args(words).current_dir(&self.root).env("LENO_STAGE", &self.stage);
        command
    }

    /// What is wrong with one step; `None` if it prints what the page shows.
    fn fault(&self, step: &Step) -> Option<String> {
        let words: Vec<_> = step.command.split_whitespace().skip_while(|word| *word == "sudo").collect();
        let ["leno", arguments @ ..] = &words[..] else {
            return Some(format!("`{}` is no command of leno: show it in a block that is not `console`", step.command));
        };
        let ran = run(&mut self.command(arguments));
        // Hints contain the stage's name where it is not the default one.
        let printed = ran.stdout.replace(&format!(" --name {}", self.stage), "");
        if ran.code == 0 && matches(&step.prints, &printed) {
            return None;
        }
        Some(format!(
            "`{}` exits with {} and prints\n{printed}{}\nwhere the page has\n{}",
            step.command,
            ran.code,
            ran.stderr,
            step.prints.join("\n")
        ))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A page that failed may have left a stage. One that passed has ended its stage itself.
        run(&mut self.command(&["down"]));
    }
}

/// Commands that change nothing.
const LOOKS: [&str; 6] = ["config", "explain", "logs", "metrics", "observe", "ps"];

/// Runs every session of a page.
#[track_caller]
fn holds(page: &str) {
    if skip(&format!("what {page} shows"), &["nft", "curl"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let steps = steps(&text, Place::Stage);
    assert!(!steps.is_empty(), "{page} shows no session");
    let name = page.chars().filter(char::is_ascii_lowercase).take(8).collect::<String>();
    let session = Session { stage: format!("{name}{}", std::process::id()), root };
    for step in &steps {
        if LOOKS.iter().any(|word| step.command.contains(&format!("leno {word}"))) {
            // The expected output may take a moment to appear. A human reader is slower than a test.
            eventually(page, || session.fault(step).map_or(Ok(()), Err));
        } else if let Some(fault) = session.fault(step) {
            panic!("{page}: {fault}");
        }
    }
}

#[test]
fn readme() {
    holds("README.md");
}

#[test]
fn observing() {
    holds("docs/observing.md");
}

#[test]
fn operating() {
    holds("docs/operating.md");
}

#[test]
fn policies() {
    holds("docs/policies.md");
}
