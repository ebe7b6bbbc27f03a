//! A load generator as a process in a pod's network namespace.

use std::process::Stdio;

use leno_capture::NetworkNamespace;
use leno_local::Stage;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Error;
use crate::load::{Event, LoadSpec, Outcome};
use crate::options::RunOptions;
use crate::scenario::NAMESPACE;

/// The network namespace of a pod of the lab.
///
/// # Errors
/// If it does not run. The error is a text.
pub(super) fn pod_namespace(stage: &Stage, name: &str) -> Result<NetworkNamespace, String> {
    let listing = stage.listing();
    let pod = listing.pods.iter().find(|pod| pod.namespace == NAMESPACE && pod.name == name);
    let pid = pod.and_then(|pod| u32::try_from(pod.pid?).ok());
    let pid = pid.ok_or_else(|| format!("pod {name} does not run"))?;
    NetworkNamespace::from_pid(pid).map_err(|error| error.to_string())
}

/// A running generator. Dropping it kills the process.
pub(super) struct Generator {
    step: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Generator {
    /// Starts it in the network namespace of the pod `from`. To all others, it is that pod.
    pub(super) fn start(
        stage: &Stage,
        options: &RunOptions,
        step: &str,
        from: &str,
        spec: &LoadSpec,
    ) -> Result<Self, Error> {
        let failed = |reason: String| Error::Load { step: step.to_owned(), reason };
        let namespace = pod_namespace(stage, from).map_err(failed)?;
        let spec = serde_json::to_string(spec).map_err(|source| Error::Spec { what: "load", source })?;
        let mut command = Command::new(&options.program);
        command.args(["lab-load", &spec]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        crate::child::tie(command.as_std_mut());
        let spawned = namespace.run(|| command.spawn()).map_err(|error| failed(error.to_string()))?;
        let mut child = spawned.map_err(|error| failed(format!("{}: {error}", options.program.display())))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("its pipes are missing".to_owned()));
        };
        Ok(Self { step: step.to_owned(), child, orders: Some(orders), answers: BufReader::new(answers).lines() })
    }

    fn failed(&self, reason: impl Into<String>) -> Error {
        Error::Load { step: self.step.clone(), reason: reason.into() }
    }

    /// Waits for an event.
    pub(super) async fn expect(&mut self, wanted: &Event) -> Result<(), Error> {
        let event = self.next().await?;
        if event == *wanted { Ok(()) } else { Err(self.failed(format!("{event:?} instead of {wanted:?}"))) }
    }

    /// Waits for the result and for the end of the process.
    pub(super) async fn outcome(mut self) -> Result<Outcome, Error> {
        let outcome = match self.next().await? {
            Event::Result { outcome } => *outcome,
            event => return Err(self.failed(format!("{event:?} instead of its result"))),
        };
        // Standard input stays open until the process has ended, because its end would end the process earlier.
        self.child.wait().await.map_err(|error| self.failed(error.to_string()))?;
        Ok(outcome)
    }

    /// Ends an unlimited load.
    pub(super) async fn stop(&mut self) -> Result<(), Error> {
        let Some(orders) = &mut self.orders else { return Ok(()) };
        let written = orders.write_all(b"stop\n").await;
        written.map_err(|error| self.failed(format!("it does not take orders: {error}")))
    }

    async fn next(&mut self) -> Result<Event, Error> {
        let line = self.answers.next_line().await.map_err(|error| self.failed(error.to_string()))?;
        let Some(line) = line else {
            let how = self.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
            return Err(self.failed(format!("the generator ended without a result ({how})")));
        };
        match serde_json::from_str(&line) {
            Ok(Event::Failed { reason }) => Err(self.failed(reason)),
            Ok(event) => Ok(event),
            Err(error) => Err(self.failed(format!("it said {line:?}: {error}"))),
        }
    }
}
