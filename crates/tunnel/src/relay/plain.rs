//! From one TCP connection to another.

use std::io;
use std::task::{Context, Poll, ready};

use leno_tls::buffer::{Buffer, ReadSize};
use tokio::net::TcpStream;

use super::{RelayOptions, TURN, end};
use crate::sockets::{try_read, try_write};

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

    /// Whether something was read that the sink has no room for.
    pub(super) fn is_stalled(&self) -> bool {
        self.waiting.is_some()
    }

    /// Ready once the direction has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &TcpStream,
        sink: &TcpStream,
        count: impl Fn(u64),
        opposite_done: bool,
    ) -> Poll<Result<(), Failure>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            if let Some(Waiting { buffer, from, to }) = &mut self.waiting {
                ready!(sink.poll_write_ready(cx)).map_err(Failure::Sink)?;
                let written = match try_write(sink, &buffer[*from..*to]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    written => written.map_err(Failure::Sink)?,
                };
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
                    end(sink).map_err(Failure::Sink)?;
                }
                self.done = true;
                continue;
            }
            ready!(source.poll_read_ready(cx)).map_err(Failure::Source)?;
            let mut buffer = self.size.buffer();
            let len = match try_read(source, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => read.map_err(Failure::Source)?,
            };
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
