//! Waiting, and saying for what.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::interrupt;
use super::telling::say;

/// How often a person who waits is told that it still goes on.
const REMINDER: Duration = Duration::from_secs(10);
/// How often a thing is looked at that can't tell by itself that it is ready.
const LOOK: Duration = Duration::from_millis(100);

/// One thing that is waited for, and those whose end would make the waiting vain.
pub(crate) struct Wait<'a> {
    what: &'a str,
    began: Instant,
    reminded: Instant,
    limit: Duration,
}

impl<'a> Wait<'a> {
    /// Says that `what` is waited for.
    pub(crate) fn begin(what: &'a str, limit: Duration) -> Self {
        say(&format!("waiting for {what}"));
        let now = Instant::now();
        Self { what, began: now, reminded: now, limit }
    }

    /// Waits until a command succeeds that is tried again and again.
    pub(crate) fn until_succeeds(
        mut self,
        check: &mut dyn FnMut() -> Result<()>,
        command: impl Fn() -> Command,
    ) -> Result<()> {
        loop {
            let mut attempt = command();
            let output = attempt.stdin(Stdio::null()).output().with_context(|| format!("running {attempt:?}"))?;
            if output.status.success() {
                self.end();
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            self.turn(check, || said)?;
        }
    }

    /// Waits for a command that itself waits.
    pub(crate) fn for_command(mut self, check: &mut dyn FnMut() -> Result<()>, mut command: Command) -> Result<()> {
        let mut child: Child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {command:?}"))?;
        loop {
            if let Some(status) = child.try_wait().with_context(|| format!("waiting for {command:?}"))? {
                if status.success() {
                    self.end();
                    return Ok(());
                }
                let output = child.wait_with_output().context("reading what a command said")?;
                bail!("{} did not come: {}", self.what, String::from_utf8_lossy(&output.stderr).trim());
            }
            if let Err(error) = self.turn(check, String::new) {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        }
    }

    fn end(&self) {
        say(&format!("  {} after {:.1} s", self.what, self.began.elapsed().as_secs_f64()));
    }

    fn turn(&mut self, check: &mut dyn FnMut() -> Result<()>, said: impl FnOnce() -> String) -> Result<()> {
        interrupt::check()?;
        check()?;
        let waited = self.began.elapsed();
        if waited > self.limit {
            bail!("{} did not come within {} s. {}", self.what, self.limit.as_secs(), said().trim());
        }
        if self.reminded.elapsed() > REMINDER {
            self.reminded = Instant::now();
            say(&format!("  still waiting for {} ({} s)", self.what, waited.as_secs()));
        }
        std::thread::sleep(LOOK);
        Ok(())
    }
}
