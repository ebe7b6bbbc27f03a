//! One connection of the engine, and its state.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::message::ResponseReader;
use super::spec::{HttpLoad, Reuse};
use crate::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Ready for a request.
    Idle,
    /// The connection of a request is being opened.
    Connecting,
    /// The request is being sent; `sent` bytes have been.
    Sending,
    /// The answer has not come yet.
    Receiving,
    /// Answered. The server is about to close.
    Closing,
    /// Failed a moment ago.
    Pausing,
}

/// A place for one connection at a time, and the requests for it.
pub(super) struct Slot {
    pub number: usize,
    pub stream: Option<TcpStream>,
    pub phase: Phase,
    pub sent: usize,
    pub reader: ResponseReader,
    /// The time from which the latency counts.
    pub start: Instant,
    /// The time at which the request was really sent. Its timeout counts from here.
    pub begun: Instant,
    /// The number of requests begun.
    pub turn: u64,
    /// The number of requests that are due and not begun.
    pub due: u64,
}

impl Slot {
    pub(super) fn open(number: usize, load: &HttpLoad) -> Result<Self, Error> {
        let stream = match load.reuse {
            Reuse::PerRequest => None,
            Reuse::Kept => {
                let what = || format!("cannot open connection {number} to {}", load.target);
                let limit = Duration::try_from_secs_f64(load.timeout_seconds).unwrap_or(Duration::from_secs(10));
                let stream = TcpStream::connect_timeout(&load.target, limit).map_err(Error::io(what()))?;
                stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(Error::io(what()))?;
                Some(stream)
            }
        };
        let now = Instant::now();
        Ok(Self {
            number,
            stream,
            phase: Phase::Idle,
            sent: 0,
            reader: ResponseReader::new(),
            start: now,
            begun: now,
            turn: 0,
            due: 0,
        })
    }
}

/// Begins to open a connection.
pub(super) fn connect(load: &HttpLoad) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(load.target), kind, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&SockAddr::from(load.target)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
