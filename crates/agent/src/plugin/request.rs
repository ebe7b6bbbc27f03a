//! What a container runtime hands to a plugin: the environment, and the configuration on standard input.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Code, Failure};
use crate::events::{Address, DEFAULT_SOCKET, IpConfig, PodEvent};

/// What the plugin is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the CNI specification's")]
pub enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

/// The environment in which a runtime starts a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// What to do.
    pub command: Command,
    /// The runtime's id of the sandbox.
    pub container_id: String,
    /// Path of the network namespace.
    pub netns: String,
    /// Arguments of the runtime's own, `KEY=VALUE` with `;` in between.
    pub args: String,
}

impl Environment {
    /// From this process's environment.
    ///
    /// # Errors
    /// If `CNI_COMMAND` is none that is known.
    pub fn of_process() -> Result<Self, Failure> {
        let get = |name: &str| std::env::var(name).unwrap_or_default();
        Self::new(&get("CNI_COMMAND"), get("CNI_CONTAINERID"), get("CNI_NETNS"), get("CNI_ARGS"))
    }

    /// From the values of the environment's variables.
    ///
    /// # Errors
    /// If `command` is none that is known.
    pub fn new(command: &str, container_id: String, netns: String, args: String) -> Result<Self, Failure> {
        let command = match command {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "STATUS" => Command::Status,
            "GC" => Command::Gc,
            "VERSION" => Command::Version,
            "" => {
                let message = "CNI_COMMAND is not set: this is a CNI plugin, which a container runtime runs";
                return Err(Failure::new(Code::InvalidEnvironment, message));
            }
            other => return Err(Failure::new(Code::InvalidEnvironment, format!("CNI_COMMAND {other:?} is unknown"))),
        };
        Ok(Self { command, container_id, netns, args })
    }

    /// The pod that this is about, with the addresses that the earlier plugins gave it; `None` if it is no pod.
    pub(crate) fn pod(&self, config: &Config) -> Option<PodEvent> {
        let argument = |name: &str| {
            let pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value.to_owned()).next()
        };
        Some(PodEvent {
            netns: self.netns.clone(),
            pod_name: argument("K8S_POD_NAME")?,
            pod_namespace: argument("K8S_POD_NAMESPACE")?,
            pod_uid: argument("K8S_POD_UID").unwrap_or_default(),
            container_id: self.container_id.clone(),
            ips: config.addresses().into_iter().map(|ip| IpConfig { address: Address { ip } }).collect(),
        })
    }
}

/// The plugin's entry in the list of plugins, and what the runtime adds to it.
#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(rename = "cniVersion", default)]
    cni_version: String,
    #[serde(rename = "prevResult", default)]
    previous: Option<Box<RawValue>>,
    /// Where the agent listens.
    #[serde(default = "default_socket")]
    pub(crate) socket: PathBuf,
    /// What the agent has written down.
    #[serde(rename = "stateFile", default)]
    pub(crate) state_file: PathBuf,
    /// How long a pod that must not start without an agent waits for one, in seconds.
    #[serde(rename = "agentWaitSeconds", default)]
    pub(crate) agent_wait_seconds: u64,
    /// The namespace in which the agent itself runs.
    #[serde(rename = "agentNamespace", default)]
    pub(crate) agent_namespace: Option<String>,
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

/// What is used of an earlier plugin's result.
#[derive(Default, Deserialize)]
struct Previous {
    #[serde(default)]
    ips: Vec<PreviousIp>,
}

#[derive(Deserialize)]
struct PreviousIp {
    #[serde(default)]
    address: String,
}

impl Config {
    /// Parses the configuration that a container runtime gives on standard input (CNI specification, section 2).
    ///
    /// # Errors
    /// If the input is no CNI configuration.
    pub fn parse(input: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(input)
            .map_err(|error| Failure::new(Code::Undecodable, format!("the configuration can't be read: {error}")))
    }

    /// The CNI version to speak. Configurations without one are older than lists of plugins.
    pub(crate) fn cni_version(&self) -> &str {
        if self.cni_version.is_empty() { "0.1.0" } else { &self.cni_version }
    }

    /// The result of the earlier plugins, as they wrote it.
    pub(crate) fn previous(&self) -> Option<&str> {
        self.previous.as_deref().map(RawValue::get).filter(|text| *text != "null")
    }

    /// The addresses in it.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let previous: Previous = self.previous().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let parse = |ip: &PreviousIp| ip.address.split('/').next().and_then(|address| address.parse().ok());
        previous.ips.iter().filter_map(parse).collect()
    }
}
