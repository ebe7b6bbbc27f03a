//! A load that goes on while something happens to the cluster, and counts what was lost.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::toolbox::{Answer, read};

/// A pod that asks, one request after the other, each on a connection of its own. Ends with this value.
#[derive(Debug)]
pub struct Load {
    child: Child,
    /// The pod goes on until this is closed.
    input: Option<ChildStdin>,
    answers: Arc<Answers>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Answers {
    came: Mutex<Came>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Came {
    answers: Vec<Answer>,
    ended: bool,
}

impl Namespace {
    /// Lets a pod ask all addresses in turn, one every `every`, until [`Load::stop`].
    ///
    /// # Errors
    ///
    /// If kubectl can't be started.
    pub fn load(&self, pod: &str, every: Duration, urls: &[&str]) -> Result<Load, Error> {
        let every = format!("{}ms", every.as_millis());
        let mut arguments = vec!["exec", "--stdin", "--namespace", self.name(), pod, "--", "/toolbox", "ask"];
        arguments.extend(["-until-eof", "-timeout", "10s", "-every", &every]);
        arguments.extend(urls);
        let mut command = self.kubectl().command(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| Error::Start { program: "kubectl".to_owned(), source })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let answers = Arc::new(Answers::default());
        let theirs = Arc::clone(&answers);
        let reader = std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
                theirs.came.lock().answers.extend(read(&line));
                theirs.more.notify_all();
            }
            theirs.came.lock().ended = true;
            theirs.more.notify_all();
        });
        Ok(Load { child, input, answers, reader: Some(reader) })
    }
}

impl Load {
    /// Waits until so many more answers or failures have come.
    ///
    /// # Errors
    ///
    /// If they don't within two minutes, or if the pod stops to ask.
    pub fn await_more(&mut self, count: usize) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut came = self.answers.came.lock();
        let wanted = came.answers.len() + count;
        while came.answers.len() < wanted && !came.ended {
            if self.answers.more.wait_until(&mut came, deadline).timed_out() {
                break;
            }
        }
        let got = came.answers.len();
        drop(came);
        if got >= wanted { Ok(()) } else { Err(self.broke_off(&format!("{got} answers came, {wanted} were awaited"))) }
    }

    /// Ends it and returns all that came.
    ///
    /// # Errors
    ///
    /// If it ended before, by itself.
    pub fn stop(mut self) -> Result<Vec<Answer>, Error> {
        if self.answers.came.lock().ended {
            return Err(self.broke_off("it ended by itself"));
        }
        self.input = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        Ok(std::mem::take(&mut self.answers.came.lock().answers))
    }

    fn broke_off(&mut self, what: &str) -> Error {
        self.input = None;
        let _ = self.child.kill();
        let mut said = what.to_owned();
        if let Some(errors) = &mut self.child.stderr {
            said.push_str(": ");
            let _ = errors.read_to_string(&mut said);
        }
        Error::Kubectl { arguments: "exec ... /toolbox ask".to_owned(), said }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
