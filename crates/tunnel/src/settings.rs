//! Parameters of the HTTP/2 connections that carry tunnels.

use std::time::Duration;

use crate::WindowBudget;
use crate::window::BEFORE;

/// Parameters of HBONE connections, client and server side. The defaults are the ones ztunnel
/// uses, so that mixed meshes behave alike; where they differ, the field says so.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest receive window of one stream, bytes: how much this side holds for a reader that has stopped, as long as there
    /// are few such readers ([`WindowBudget`]). At least 65 535, which peers assume until they are told otherwise; the same
    /// holds for `connection_window`.
    pub stream_window: u32,
    /// Receive window of a whole connection, bytes, as long as its programs read. Must exceed
    /// `stream_window` several times: with equal sizes, programs that read connection A only after
    /// connection B deadlock.
    pub connection_window: u32,
    /// Bytes that all connections with these settings and their clones may receive beyond `connection_window`; 64 MiB by
    /// default. When a connection's streams hold more than a quarter of its window for programs that don't read, its window
    /// grows by the rest from this budget, so that its other streams go on. Half of the budget also bounds the larger
    /// windows that programs earn by reading much, and so what these programs leave waiting if they stop.
    pub window_budget: WindowBudget,
    /// Largest DATA frame accepted, bytes (RFC 9113 §6.5.2: 16 384 to 16 777 215).
    pub max_frame_size: u32,
    /// Largest response head a client accepts, bytes, as RFC 9113 §6.5.2 counts.
    pub client_header_list: u32,
    /// Largest request head a server accepts, bytes, as RFC 9113 §6.5.2 counts.
    pub server_header_list: u32,
    /// Streams a server lets a client have open at once; more are refused.
    pub max_concurrent_streams: u32,
    /// Streams a client puts on one connection, at most; the peer's own limit is honoured too.
    pub streams_per_connection: usize,
    /// Over how many connections a client spreads its streams to one peer, if there are more than a few. Each connection is
    /// served by one thread of the peer. 1 by default, as ztunnel does.
    pub spread: usize,
    /// How long a peer may be silent while something waits for it before it is sent a PING. It may take up to half as long
    /// again, because there are two checks in this time. ztunnel sends a PING every 10 s whether or not anything waits, and
    /// so keeps two proxies awake for each idle connection.
    pub ping_interval: Duration,
    /// How long a peer may be silent after a PING before the connection counts as dead. Together with `ping_interval` and
    /// the time between checks, that is 9 s at most after something was sent to a peer that is gone (ztunnel: 30 s).
    pub ping_timeout: Duration,
    /// How long a request waits if the connection's peer was silent when it was made, and stays silent. After that, the
    /// connection gets no more requests.
    pub probe_timeout: Duration,
    /// How long the peer of a connection that ends in good order may take to close its side.
    pub closing_timeout: Duration,
    /// How long a client keeps a connection that carries no stream. ztunnel keeps it for five minutes, so that requests to a
    /// pod that got a dead pod's address may use stale connections. Half as long if it carried half of its streams at some
    /// time, because the tables of many streams stay as large as they were.
    pub idle_timeout: Duration,
    /// How long a client keeps a connection that carries no stream if it has others to the same peer. A burst leaves a
    /// hundred of these, each with the memory of a hundred streams.
    pub surplus_timeout: Duration,
    /// How long a peer may take for its HTTP/2 preface.
    pub handshake_timeout: Duration,
    /// Most streams that a peer may have opened and reset before they were processed. Beyond that, the connection is closed
    /// (rapid reset, CVE-2023-44487).
    pub max_pending_reset_streams: usize,
    /// Stream errors a peer may cause over the life of a connection (CVE-2025-8671).
    pub max_error_reset_streams: usize,
    /// Streams reset by us that are remembered, so that late frames are not taken for errors.
    pub max_reset_streams: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            window_budget: WindowBudget::new(64 << 20),
            max_frame_size: 1 << 20,
            client_header_list: 16 << 10,
            server_header_list: 64 << 10,
            max_concurrent_streams: 200,
            streams_per_connection: 100,
            spread: 1,
            ping_interval: Duration::from_secs(3),
            ping_timeout: Duration::from_millis(4500),
            probe_timeout: Duration::from_secs(4),
            closing_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(60),
            surplus_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            max_pending_reset_streams: 50,
            max_error_reset_streams: 1024,
            max_reset_streams: 200,
        }
    }
}

impl Settings {
    /// The window of a stream before it is open, as announced to the peer.
    pub(crate) fn first_stream_window(&self) -> u32 {
        self.stream_window.min(BEFORE)
    }

    pub(crate) fn client(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(self.first_stream_window())
            .initial_connection_window_size(self.connection_window)
            .max_frame_size(self.max_frame_size)
            .max_header_list_size(self.client_header_list)
            .initial_max_send_streams(self.streams_per_connection)
            .max_concurrent_reset_streams(self.max_reset_streams)
            .max_local_error_reset_streams(Some(self.max_error_reset_streams))
            .enable_push(false);
        builder
    }

    pub(crate) fn server(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(self.first_stream_window())
            .initial_connection_window_size(self.connection_window)
            .max_frame_size(self.max_frame_size)
            .max_header_list_size(self.server_header_list)
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_concurrent_reset_streams(self.max_reset_streams)
            .max_pending_accept_reset_streams(self.max_pending_reset_streams)
            .max_local_error_reset_streams(Some(self.max_error_reset_streams));
        builder
    }
}
