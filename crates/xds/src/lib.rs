//! How does configuration travel? Delta discovery (xDS) and certificate requests, client and
//! server, as Istio's ambient mesh speaks them.
//!
//! * [`client`]: keeps a node proxy's picture of the mesh up to date.
//! * [`ca_client`]: asks for its workloads' certificates.
//! * [`server`]: the control plane's side of both.
//!
//! What a resource means is nobody's business here: a resource is a name, a version and bytes.

pub mod ca_client;
mod channel;
pub mod client;
mod client_stream;
mod error;
mod resources;
pub mod server;

pub use channel::{ChannelConfig, TokenSource};
pub use error::Error;
pub use leno_tls::RootSource;
pub use resources::{Resource, ResourceMap, Resources};
