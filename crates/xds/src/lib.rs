//! How does configuration travel? Delta discovery (xDS) and certificate requests, client and
//! server, as Istio's ambient mesh speaks them.
//!
//! * [`client`]: keeps a node proxy's copy of the mesh up to date.
//! * [`ca_client`]: requests the certificates of its workloads.
//! * [`server`]: the control plane's side of both.
//!
//! This crate does not know what a resource means: to it, a resource is a name, a version and bytes.

pub mod ca_client;
mod catalogue;
mod channel;
pub mod client;
mod encoded;
mod error;
mod resource;
mod resources;
pub mod server;
mod wire;

pub use catalogue::Catalogue;
pub use channel::{ChannelConfig, TokenSource};
pub use encoded::Published;
pub use error::Error;
pub use leno_tls::RootSource;
pub use resource::Resource;
pub use resources::Resources;

/// Entry points for fuzzers. Whatever the input, nothing may panic.
#[doc(hidden)]
pub mod fuzzing {
    use prost::Message;

    use crate::client::Handler;
    use crate::client::Response;

    /// Feeds the requests of a hostile proxy on one stream.
    pub fn requests<'a>(stream: impl IntoIterator<Item = &'a [u8]>, resources: &crate::Resources) {
        let mut subscription = crate::server::Subscription::new();
        let mut now = std::time::Instant::now();
        for bytes in stream {
            let Ok(request) = crate::server::Request::decode(bytes.to_vec().into()) else { return };
            if subscription.request(&request, now).is_err() {
                return;
            }
            while subscription.next(resources, now).is_some() {}
            now += std::time::Duration::from_millis(700);
        }
    }

    /// Feeds the responses of a hostile control plane on one stream.
    pub fn responses<'a>(stream: impl IntoIterator<Item = &'a [u8]>, handler: &mut dyn Handler) {
        let mut subscribed = crate::client::Subscribed::new(leno_proto::ADDRESS_TYPE);
        for bytes in stream {
            let Ok(response) = Response::decode(bytes) else { return };
            let _ = subscribed.answer(response, handler);
        }
    }
}
