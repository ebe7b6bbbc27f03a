//! From a TCP connection into a tunnel.

use std::io;
use std::task::{Context, Poll, ready};

use leno_tls::buffer::ReadSize;
use tokio::net::TcpStream;

use super::{RelayOptions, TURN};
use crate::meter::Meter;
use crate::sockets::try_read;
use crate::{RelayError, TunnelStream};

pub(super) struct Upload {
    size: ReadSize,
    /// Room in the tunnel is reserved, or waited for.
    reserved: bool,
    /// The program has ended its half. The tunnel's half has not ended yet.
    ending: bool,
    done: bool,
    moved: u64,
}

impl Upload {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self { size: ReadSize::new(options.largest_read), reserved: false, ending: false, done: false, moved: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether the program has sent something that the tunnel has no room for.
    pub(super) fn is_stalled(&self) -> bool {
        self.reserved
    }

    /// Ready once the direction has ended.
    pub(super) fn poll<M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        tunnel: &mut TunnelStream,
        meter: &M,
    ) -> Poll<Result<(), RelayError>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            if self.ending {
                ready!(tunnel.poll_finish(cx))?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            // Only a readable socket may take room of the connection's window and a buffer.
            match tcp.poll_read_ready(cx) {
                Poll::Pending => return self.idle(tunnel),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(RelayError::Local(error))),
                Poll::Ready(Ok(())) => {}
            }
            self.reserved = true;
            let room = ready!(tunnel.poll_reserve(cx, self.size.bytes()))?;
            let mut buffer = self.size.buffer();
            let length = match try_read(tcp, &mut buffer[..room]) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(RelayError::Local(error))),
            };
            if length == 0 {
                self.ending = true;
                self.reserved = false;
                tunnel.unreserve();
                continue;
            }
            self.size.observe(length, room);
            tunnel.send(buffer, length)?;
            self.reserved = false;
            self.moved += length as u64;
            meter.forward(length as u64);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn idle(&mut self, tunnel: &mut TunnelStream) -> Poll<Result<(), RelayError>> {
        if std::mem::take(&mut self.reserved) {
            tunnel.unreserve();
        }
        Poll::Pending
    }
}
