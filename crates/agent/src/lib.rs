//! Which pods of a node are captured, and when? The agent that keeps a node's pods in the mesh, and its CNI plugin.
//!
//! * [`plugin`]: what the container runtime runs for each pod. It asks the agent.
//! * [`run`]: the agent. It hears of pods and namespaces ([`News`]), answers the plugin, and keeps each pod as it should be.
//! * [`install`], [`conflist`]: the plugin's place on the node.
//! * [`cgroup`]: which pod a process belongs to.
//! * [`Cluster`]: what is needed of the API server beside the news.

mod agent;
pub mod cgroup;
mod cluster;
mod config;
pub mod conflist;
mod directory;
mod error;
mod events;
mod files;
pub mod install;
mod install_watch;
mod metrics;
mod node_path;
pub mod plugin;
mod pod;
mod probes;
mod processes;
mod registry;
mod removal;
mod server;
mod state;
pub mod sysctls;

pub use agent::{Ended, Parts, run};
pub use cluster::{Cluster, Farewell, News, PodName};
pub use config::Config;
pub use error::Error;
pub use events::DEFAULT_SOCKET;
