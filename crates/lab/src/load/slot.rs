//! One connection of the engine, and its state.

use std::io;
use std::net::{SocketAddr, TcpStream};
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
    /// Which of the requests of a walk it is at.
    pub stop: usize,
    /// Where that request goes.
    pub target: SocketAddr,
}

impl Slot {
    pub(super) fn open(number: usize, load: &HttpLoad) -> Result<Self, Error> {
        let target = target_of(load, 0);
        let stream = match load.reuse {
            Reuse::PerRequest => None,
            Reuse::Kept => {
                let what = || format!("cannot open connection {number} to {target}");
                let limit = Duration::try_from_secs_f64(load.timeout_seconds).unwrap_or(Duration::from_secs(10));
                let stream = TcpStream::connect_timeout(&target, limit).map_err(Error::io(what()))?;
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
            stop: 0,
            target,
        })
    }

    /// Goes to the request of its turn. If that goes elsewhere than the last one, its connection is given up.
    pub(super) fn go_on(&mut self, load: &HttpLoad) {
        let Some(walk) = &load.walk else { return };
        let length = walk.stops.len() as u64;
        // The turn was counted when it was taken.
        self.stop = usize::try_from((self.turn + length - 1) % length).unwrap_or(0);
        let target = target_of(load, self.stop);
        if target != self.target {
            (self.target, self.stream) = (target, None);
        }
    }
}

fn target_of(load: &HttpLoad, stop: usize) -> SocketAddr {
    load.walk.as_ref().and_then(|walk| walk.stops.get(stop)).map_or(load.target, |stop| stop.target)
}

/// Begins to open a connection.
pub(super) fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&SockAddr::from(target)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
