//! From a TCP connection into a tunnel.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_tls::buffer::ReadSize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

use super::{Meter, RelayError, RelayOptions, TURN};
use crate::TunnelStream;

pub(super) struct Upload {
    size: ReadSize,
    reserved: bool,
    done: bool,
    moved: u64,
}

impl Upload {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self { size: ReadSize::new(options.largest_read), reserved: false, done: false, moved: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Ready once the direction has ended.
    pub(super) fn poll<M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &mut ReadHalf<'_>,
        tunnel: &mut TunnelStream,
        meter: &M,
    ) -> Poll<Result<(), RelayError>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            // Only a readable socket may take room of the connection's window and a buffer.
            let socket: &TcpStream = tcp.as_ref();
            match socket.poll_read_ready(cx) {
                Poll::Pending => return self.idle(tunnel),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(RelayError::Local(error))),
                Poll::Ready(Ok(())) => {}
            }
            self.reserved = true;
            let room = ready!(tunnel.poll_reserve(cx, self.size.bytes()))?;
            let mut buffer = self.size.buffer();
            let mut unfilled = ReadBuf::new(&mut buffer[..room]);
            match Pin::new(&mut *tcp).poll_read(cx, &mut unfilled) {
                Poll::Pending => return self.idle(tunnel),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(RelayError::Local(error))),
                Poll::Ready(Ok(())) => {}
            }
            let len = unfilled.filled().len();
            if len == 0 {
                self.done = true;
                self.reserved = false;
                tunnel.finish()?;
                return Poll::Ready(Ok(()));
            }
            self.size.observe(len, room);
            tunnel.send(buffer.freeze(len))?;
            self.moved += len as u64;
            meter.forward(len as u64);
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
