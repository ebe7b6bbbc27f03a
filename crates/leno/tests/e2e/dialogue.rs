//! A program in a pod that is asked by a line on its standard input, and answers with a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout};

use crate::stage::Stage;

/// The program. It is ended when this is dropped.
pub(crate) struct Dialogue {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Dialogue {
    /// Starts a script of Python in a pod.
    pub(crate) fn of_python(stage: &Stage, pod: &str, script: &str, arguments: &[&str]) -> Self {
        let mut child = stage.spawn(pod, &[&["/usr/bin/python3", "-c", script], arguments].concat());
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Asks it. It may have ended, and left an answer before.
    pub(crate) fn ask(&mut self) {
        let _ = self.child.stdin.as_mut().unwrap().write_all(b"\n");
    }

    /// Its next line; empty if it has ended.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Asks it, and reads the JSON that it answers with.
    #[track_caller]
    pub(crate) fn told<T: serde::de::DeserializeOwned>(&mut self) -> T {
        self.ask();
        let line = self.answer();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
