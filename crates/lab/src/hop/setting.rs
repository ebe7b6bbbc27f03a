//! What a proxy of a hop is told to do. All proxies are told the same, each in its own words.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::load::Protocol;
use crate::scenario::Hop;

/// Threads of every proxy.
pub(super) const WORKERS: usize = 2;

/// Receive windows of a stream and of a connection of HTTP/2, bytes.
pub(super) const WINDOWS: (u32, u32) = (1 << 20, 16 << 20);

/// The certificates of a pair: one identity for both, and the root that each trusts. PEM files.
#[derive(Debug, Clone)]
pub(super) struct Certificates {
    pub chain: PathBuf,
    pub key: PathBuf,
    pub root: PathBuf,
    /// Chain and key in one file.
    pub both: PathBuf,
}

/// Which of a hop's proxies it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The only one: clear on both sides.
    Only,
    /// The client's. It speaks HTTP/2 over mutual TLS with the second.
    First,
    /// The server's.
    Second,
}

/// One proxy.
#[derive(Debug, Clone)]
pub(super) struct Setting<'a> {
    pub hop: Hop,
    pub side: Side,
    /// How client and server speak.
    pub protocol: Protocol,
    pub listen: SocketAddr,
    /// The next one on the way: the second proxy, or the server.
    pub next: SocketAddr,
    pub certificates: &'a Certificates,
    /// Where its files are.
    pub directory: PathBuf,
}

impl Setting<'_> {
    /// Whether the next one is asked in HTTP/2.
    pub(super) fn next_is_http2(&self) -> bool {
        self.side == Side::First || self.protocol != Protocol::Http1
    }

    /// Whether it is asked in HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.side == Side::Second || self.protocol != Protocol::Http1
    }
}

/// What a program is started with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// Names and contents of files in its directory.
    pub files: Vec<(&'static str, String)>,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, String)>,
}
