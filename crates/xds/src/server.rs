//! The control plane's side: delta ADS and `CreateCertificate` over TLS.
//!
//! [`Subscription`] decides what one proxy is sent next and knows nothing of the network;
//! [`Service`] and [`CaService`] put it on gRPC; [`serve`] accepts connections.

mod auth;
mod calm;
mod certificates;
mod discovery;
mod listener;
mod places;
mod refusals;
mod subscription;

pub use auth::{AuthError, Authenticator, Caller};
pub use certificates::{CaService, SignError, Signer};
pub use discovery::{ProxyStatus, Service, TypeStatus};
pub use listener::{Services, serve};
pub use places::Limits;
pub use subscription::{ProtocolError, Subscription, TypeProgress};
