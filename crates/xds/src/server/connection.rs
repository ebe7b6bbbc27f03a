//! What a request's handler knows of its connection.

use std::net::SocketAddr;

use tokio::sync::watch;

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// Tells long-lived streams to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown(pub(super) Option<watch::Receiver<bool>>);

impl Shutdown {
    /// Returns when the listener shuts down.
    pub(crate) async fn wait(mut self) {
        match &mut self.0 {
            // An error means that the listener is gone, which is the same.
            Some(signal) => drop(signal.wait_for(|down| *down).await),
            None => std::future::pending().await,
        }
    }
}
