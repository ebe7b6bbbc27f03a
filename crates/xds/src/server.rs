//! The control plane's side: delta ADS and `CreateCertificate` over TLS.
//!
//! [`Subscription`] decides what a proxy is sent next, and knows nothing of the network. [`Service`] and [`CaService`]
//! put it on gRPC. [`serve`] accepts connections.

mod answer;
mod auth;
mod caller;
mod calm;
mod certificates;
mod connection;
mod delta;
mod discovery;
mod grpc;
mod listener;
mod memory;
mod places;
mod proven;
mod push;
mod refusals;
mod registry;
mod request;
mod sent;
mod type_state;

pub use answer::Answer;
pub use caller::{AuthError, Authenticator, Caller};
pub use certificates::{CaService, SignError, Signer};
pub use discovery::Service;
pub use listener::{Services, serve};
pub use memory::Memory;
pub use places::Limits;
pub use push::{ProtocolError, Subscription};
pub use registry::{ProxyStatus, TypeStatus};
pub use request::{NoRequest, Request};
pub use type_state::TypeProgress;
