//! From one TCP connection to another.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_tls::buffer::{Buffer, ReadSize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::{RelayOptions, TURN};

/// Which end of a direction failed.
pub(super) enum Failure {
    Source(io::Error),
    Sink(io::Error),
}

pub(super) struct Copy {
    size: ReadSize,
    /// Read and not yet written; held only while the sink is full.
    waiting: Option<Waiting>,
    ended: bool,
    done: bool,
    moved: u64,
}

struct Waiting {
    buffer: Buffer,
    from: usize,
    to: usize,
}

impl Copy {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self { size: ReadSize::new(options.largest_read), waiting: None, ended: false, done: false, moved: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Ready once the direction has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut ReadHalf<'_>,
        sink: &mut WriteHalf<'_>,
        count: impl Fn(u64),
        opposite_done: bool,
    ) -> Poll<Result<(), Failure>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            if let Some(Waiting { buffer, from, to }) = &mut self.waiting {
                let written =
                    ready!(Pin::new(&mut *sink).poll_write(cx, &buffer[*from..*to])).map_err(Failure::Sink)?;
                *from += written;
                let all = from == to;
                self.moved += written as u64;
                count(written as u64);
                if all {
                    self.waiting = None;
                }
                continue;
            }
            if self.ended {
                // Once both halves have ended the sockets are closed, which says the same.
                if !opposite_done {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(Failure::Sink)?;
                }
                self.done = true;
                continue;
            }
            let socket: &TcpStream = (*source).as_ref();
            ready!(socket.poll_read_ready(cx)).map_err(Failure::Source)?;
            let mut buffer = self.size.buffer();
            let mut unfilled = ReadBuf::new(&mut buffer);
            ready!(Pin::new(&mut *source).poll_read(cx, &mut unfilled)).map_err(Failure::Source)?;
            let len = unfilled.filled().len();
            if len == 0 {
                self.ended = true;
            } else {
                self.size.observe(len, self.size.bytes());
                self.waiting = Some(Waiting { buffer, from: 0, to: len });
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
