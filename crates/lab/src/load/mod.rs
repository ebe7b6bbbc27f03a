//! The load generator: one process inside a pod's network namespace, which gets its parameters as one JSON text.
//!
//! It writes JSON texts to standard output, one per line: [`Event::Started`] when the measured time begins,
//! [`Event::Ended`] when it ends (so that processor time can be measured over exactly that time), and [`Event::Result`]
//! last. The end of standard input ends it at once, so that a generator never outlives the lab. In a cluster's pod there is no
//! standard input, and the load is marked as unattended.

mod asked;
mod conduct;
mod engine;
mod grpc;
mod histogram;
mod idle;
mod message;
mod multiplexed;
mod pace;
mod server;
mod server_http2;
mod slot;
mod spec;
mod stream;
mod tally;
mod ticks;
mod undisturbed;

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

pub use histogram::{Latency, LatencyRecorder};
pub use server::{Listening, ServerSpec, serve};
pub use spec::{
    Direction, Event, HttpLoad, HttpOutcome, IdleLoad, IdleOutcome, Load, LoadSpec, Outcome, Pace, Protocol, Reuse,
    Stop, StreamLoad, StreamOutcome, Undisturbed, Walk,
};

use crate::Error;

/// A command to a generator from the process that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End an unlimited load, and report.
    Stop,
}

/// Runs a load. `events` receives its beginning and end. `orders` ends an unlimited load.
///
/// # Errors
/// When nothing could be measured at all: no connection to the target, no descriptors. Failures of single requests
/// are counted in the outcome instead.
pub fn run(spec: &LoadSpec, orders: mpsc::Receiver<Order>, events: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
    raise_descriptor_limit();
    match &spec.load {
        Load::Http(load) => {
            let run = if load.protocol == Protocol::Http1 { engine::run } else { multiplexed::run };
            run(load, spec.warmup(), spec.duration(), events).map(Outcome::Http)
        }
        Load::Stream(load) => stream::run(load, spec.warmup(), spec.duration(), events).map(Outcome::Stream),
        Load::Idle(load) => idle::run(load, orders, events).map(Outcome::Idle),
    }
}

/// The process `leno lab-load SPEC`: see the module's description.
pub fn load_main(spec: &str) -> ExitCode {
    finish(serde_json::from_str(spec).map_err(|source| Error::Spec { what: "load", source }).and_then(
        |spec: LoadSpec| {
            let (give, orders) = mpsc::channel();
            if !spec.unattended {
                listen_to_orders(give.clone());
            }
            let outcome = run(&spec, orders, &mut |event| {
                if spec.unattended && event == Event::Started {
                    stop_after(spec.duration(), give.clone());
                }
                say(event);
            })?;
            say(Event::Result { outcome: Box::new(outcome) });
            Ok(())
        },
    ))
}

/// The process `leno lab-server SPEC`. It serves until it is killed, and prints where it listens.
pub fn server_main(spec: &str) -> ExitCode {
    finish(serde_json::from_str(spec).map_err(|source| Error::Spec { what: "server", source }).and_then(|spec| {
        raise_descriptor_limit();
        let server = serve(&spec)?;
        say(Event::Listening { ports: server.ports() });
        server.join()
    }))
}

/// Descriptors for ten thousand idle connections: a proxy may need two or four for each.
const DESCRIPTORS: u64 = 1 << 17;

/// Raises the limit of open descriptors for this process and its children, as far as the lab needs and the system
/// permits. Returns the limit that is now in force.
pub(crate) fn raise_descriptor_limit() -> u64 {
    leno_telemetry::raise_descriptor_limit(DESCRIPTORS).limit
}

fn finish(outcome: Result<(), Error>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(Event::Failed { reason: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn say(event: Event) {
    let mut line =
        serde_json::to_string(&event).unwrap_or_else(|error| format!(r#"{{"event":"failed","reason":"{error}"}}"#));
    line.push('\n');
    let mut out = std::io::stdout().lock();
    // The reader is gone. The end of standard input ends this process as well.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Gives the order to stop after this time.
fn stop_after(time: Duration, give: mpsc::Sender<Order>) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        // A load that is limited has ended by itself.
        let _ = give.send(Order::Stop);
    });
}

/// Reads orders from standard input on a thread of its own.
fn listen_to_orders(give: mpsc::Sender<Order>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim() == "stop" => drop(give.send(Order::Stop)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        std::process::exit(3);
    });
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
