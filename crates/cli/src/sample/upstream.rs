//! gRPC channels that are replaced while in use.

use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

/// Age at which a channel, or a connection of the client, is replaced.
///
/// A connection stays on the path on which it was opened. With connections this short-lived, traffic
/// moves into the mesh within a second of its pod being enrolled, without the server's help.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

/// A channel to one service. Requests under way keep the channel they started on, and its connection
/// closes with the last of them.
pub(super) struct Upstream {
    endpoint: Endpoint,
    current: Mutex<Option<(Instant, Channel)>>,
}

/// How gRPC servers are reached, by web and by the client alike.
pub(super) fn endpoint(host: &str) -> anyhow::Result<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{host}"))
        .with_context(|| format!("{host:?} is not a HOST:PORT to send gRPC to"))?;
    Ok(endpoint.connect_timeout(Duration::from_secs(3)).timeout(Duration::from_secs(5)).tcp_nodelay(true))
}

impl Upstream {
    /// Nothing is connected before the first request.
    pub(super) fn new(host: &str) -> anyhow::Result<Self> {
        Ok(Self { endpoint: endpoint(host)?, current: Mutex::new(None) })
    }

    pub(super) fn channel(&self) -> Channel {
        let mut current = self.current.lock();
        match &*current {
            Some((opened, channel)) if opened.elapsed() < MAX_AGE => channel.clone(),
            _ => {
                let channel = self.endpoint.connect_lazy();
                *current = Some((Instant::now(), channel.clone()));
                channel
            }
        }
    }
}

/// An error with its causes, each said once: tonic's own text for a lost connection is only "transport error".
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}
