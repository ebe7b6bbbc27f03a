//! The CNI plugin: the container runtime runs it for each pod that gets or loses its network, after the plugins that make
//! the network.
//!
//! It asks the node agent to capture the pod and returns when that is done, so that no container of the pod runs before.
//! It must never be the reason that a pod outside the mesh can't start. So while no agent answers it decides by what the
//! agent has written down: pods of a namespace that is in the mesh must wait, and all others start.
//!
//! It starts no runtime and no thread: a node may run it hundreds of times in a minute.

mod ask;
mod request;

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::events::{self, PodEvent};
use crate::state::{self, State};
use ask::{Answer, ask};
pub use request::{Command, Config, Environment};

/// The program's name as a plugin.
pub const NAME: &str = "leno-cni";

/// The CNI version that errors before the configuration is read are told in.
const VERSION: &str = "1.1.0";
/// The versions in which a plugin gets the result of the one before it.
const SUPPORTED: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Longest configuration, with the result of earlier plugins.
const INPUT_MAX: u64 = 4 << 20;

/// How long the agent may take to capture a pod. It answers sooner, with a reason; this is for one that hangs.
const ADD_DEADLINE: Duration = Duration::from_secs(8);
/// Between two questions to an agent that is not there.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the end of a pod may wait for the agent, which will hear of it from the API server, too.
const DEL_DEADLINE: Duration = Duration::from_secs(1);

/// Namespaces whose pods start without an agent even when it is unknown who is in the mesh: without them there would never
/// be an agent.
const NEVER_HELD: [&str; 1] = ["kube-system"];

/// An error in CNI's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    code: u32,
    msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    details: String,
}

/// The codes of the CNI specification that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Undecodable = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    /// The first code that is a plugin's own.
    NotCaptured = 100,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { cni_version: VERSION.to_owned(), code: code as u32, msg: message.into(), details: String::new() }
    }

    fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }
}

/// Runs the plugin as the process's environment and standard input say.
pub fn main() -> ExitCode {
    let environment = match Environment::of_process() {
        Ok(environment) => environment,
        Err(failure) => return finish(Err(failure)),
    };
    let mut input = Vec::new();
    let read = io::stdin().lock().take(INPUT_MAX).read_to_end(&mut input);
    finish(match read {
        Ok(_) => run(&environment, &input),
        Err(error) => Err(Failure::new(Code::Io, format!("can't read the configuration from standard input: {error}"))),
    })
}

fn finish(outcome: Result<String, Failure>) -> ExitCode {
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(failure) => (serde_json::to_string(&failure).unwrap_or_default(), ExitCode::FAILURE),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Does what a container runtime asks for. Returns what is to be written to standard output.
///
/// # Errors
/// What the runtime is told.
pub fn run(environment: &Environment, input: &[u8]) -> Result<String, Failure> {
    if environment.command == Command::Version {
        return Ok(versions());
    }
    let config = Config::parse(input)?;
    if !SUPPORTED.contains(&config.cni_version()) {
        let message = format!("{NAME} does not speak CNI {}", config.cni_version());
        return Err(
            Failure::new(Code::IncompatibleVersion, message).details(format!("it speaks {}", SUPPORTED.join(", ")))
        );
    }
    let outcome = match environment.command {
        Command::Add => add(environment, &config),
        Command::Del => {
            delete(environment, &config);
            Ok(String::new())
        }
        Command::Check => check(environment, &config),
        // A runtime calls the whole node unready when STATUS fails, and then not even the agent could start. What the plugin
        // owns ends with the pods' namespaces or is the agent's, so there is no garbage either.
        Command::Status | Command::Gc | Command::Version => Ok(String::new()),
    };
    outcome.map_err(|failure| Failure { cni_version: config.cni_version().to_owned(), ..failure })
}

fn versions() -> String {
    serde_json::json!({ "cniVersion": VERSION, "supportedVersions": SUPPORTED }).to_string()
}

fn add(environment: &Environment, config: &Config) -> Result<String, Failure> {
    let previous = config.previous().ok_or_else(|| {
        Failure::new(
            Code::InvalidConfig,
            format!("{NAME} makes no network: it must come after another plugin in a list of plugins (.conflist)"),
        )
    })?;
    // Other users of the same configuration than a kubelet have no pods.
    let Some(pod) = environment.pod(config) else { return Ok(previous.to_owned()) };
    if pod.netns.is_empty() {
        return Err(Failure::new(Code::InvalidEnvironment, "CNI_NETNS is not set"));
    }
    match ask_patiently(config, &pod) {
        Answer::Done => Ok(previous.to_owned()),
        Answer::Refused { retry, reason } => {
            let code = if retry { Code::TryAgainLater } else { Code::NotCaptured };
            Err(Failure::new(code, format!("pod {} is not captured for the mesh: {reason}", label(&pod))))
        }
        Answer::Unavailable(reason) => {
            without_agent(config, &pod, &reason)?;
            // The runtime's log has it.
            let _ = writeln!(
                io::stderr(),
                "{NAME}: the node agent does not answer ({reason}); pod {} starts outside the mesh, as no pod of its \
                 namespace is known to be in it",
                label(&pod)
            );
            Ok(previous.to_owned())
        }
    }
}

/// Asks for a pod to be captured. If it can't start without an agent, waits for one that is being replaced.
fn ask_patiently(config: &Config, pod: &PodEvent) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(config.agent_wait_seconds);
    loop {
        let answer = ask(&config.socket, events::ADD, pod, ADD_DEADLINE);
        let may_change = match &answer {
            Answer::Unavailable(reason) => without_agent(config, pod, reason).is_err(),
            _ => false,
        };
        if !may_change || Instant::now() >= deadline {
            return answer;
        }
        std::thread::sleep(AGAIN);
    }
}

/// Whether a pod may start although no agent answers.
fn without_agent(config: &Config, pod: &PodEvent, reason: &str) -> Result<(), Failure> {
    let must_wait = |known: &str| {
        let message = format!("pod {} must wait for the node agent: {known}, and {reason}", label(pod));
        let details = format!("is the leno-agent of this node running? It listens on {}", config.socket.display());
        Err(Failure::new(Code::TryAgainLater, message).details(details))
    };
    let never_held: BTreeSet<&str> =
        NEVER_HELD.into_iter().chain(config.agent_namespace.as_deref()).filter(|name| !name.is_empty()).collect();
    match state::read::<State>(&config.state_file) {
        Ok(Some(state)) if !state.namespaces.contains(&pod.pod_namespace) => Ok(()),
        Ok(Some(_)) => must_wait("its namespace is in the mesh"),
        _ if never_held.contains(pod.pod_namespace.as_str()) => Ok(()),
        Ok(None) => {
            must_wait(&format!("which namespaces are in the mesh is unknown without {}", config.state_file.display()))
        }
        Err(error) => must_wait(&format!("{} can't be read ({error})", config.state_file.display())),
    }
}

/// Whatever happens here, the pod ends.
fn delete(environment: &Environment, config: &Config) {
    if let Some(pod) = environment.pod(config)
        && let Answer::Unavailable(reason) = ask(&config.socket, events::DEL, &pod, DEL_DEADLINE)
    {
        let _ = writeln!(io::stderr(), "{NAME}: the node agent was not told that pod {} ends: {reason}", label(&pod));
    }
}

fn check(environment: &Environment, config: &Config) -> Result<String, Failure> {
    let Some(pod) = environment.pod(config) else { return Ok(String::new()) };
    match ask(&config.socket, events::CHECK, &pod, ADD_DEADLINE) {
        Answer::Done => Ok(String::new()),
        Answer::Refused { reason, .. } => {
            Err(Failure::new(Code::NotCaptured, format!("pod {}: {reason}", label(&pod))))
        }
        Answer::Unavailable(reason) => without_agent(config, &pod, &reason).map(|()| String::new()),
    }
}

fn label(pod: &PodEvent) -> String {
    format!("{}/{}", pod.pod_namespace, pod.pod_name)
}

#[cfg(test)]
#[path = "plugin_tests.rs"]
mod tests;
