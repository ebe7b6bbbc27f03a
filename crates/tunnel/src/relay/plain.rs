//! From one TCP connection to another.

use std::io;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, ready};

use leno_tls::buffer::{Buffer, ReadSize};
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::{RelayOptions, TURN, end};
use crate::sockets::{try_read, try_write};

/// Which end of a direction failed.
pub(super) enum Failure {
    Source(io::Error),
    Sink(io::Error),
}

/// Reads of up to this many bytes take two system calls: a read and a write. Larger ones take three: the bytes are peeked
/// at, written as far as the sink has room, and only what was written is removed from the source. So what a reader that
/// has stopped does not take stays in the kernel and needs no large buffer here.
const TAKEN_AT_ONCE: usize = 4 << 10;

pub(super) struct Copy {
    size: ReadSize,
    /// Most bytes to peek at next. What the sink took last tells how much room it is likely to have.
    look: usize,
    /// Bytes that were read and not written yet. Held only while the sink is full, and few.
    waiting: Option<Waiting>,
    /// The sink had no room for all that the source has.
    full: bool,
    ended: bool,
    done: bool,
    moved: u64,
}

struct Waiting {
    buffer: Buffer,
    from: usize,
    to: usize,
}

/// The result of peeking at a source.
enum Looked {
    /// Nothing has come.
    Nothing,
    End,
    /// How many bytes were there, and how many of them were passed on.
    Passed {
        there: usize,
        on: usize,
    },
}

impl Copy {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self {
            size: ReadSize::new(options.largest_read),
            look: TAKEN_AT_ONCE,
            waiting: None,
            full: false,
            ended: false,
            done: false,
            moved: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether the source has sent something that the sink has no room for.
    pub(super) fn is_stalled(&self) -> bool {
        self.full || self.waiting.is_some()
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
            if self.ended {
                // When both halves have ended, the sockets are closed, which has the same effect.
                if !opposite_done {
                    end(sink).map_err(Failure::Sink)?;
                }
                self.done = true;
                continue;
            }
            let passed = if self.waiting.is_none() && self.size.bytes() > TAKEN_AT_ONCE {
                ready!(sink.poll_write_ready(cx)).map_err(Failure::Sink)?;
                ready!(source.poll_read_ready(cx)).map_err(Failure::Source)?;
                self.look_and_pass(source, sink)?
            } else {
                if self.waiting.is_none() {
                    ready!(source.poll_read_ready(cx)).map_err(Failure::Source)?;
                    self.take(source)?;
                }
                ready!(self.pass(cx, sink))?
            };
            if passed > 0 {
                self.moved += passed as u64;
                count(passed as u64);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads what the source has.
    fn take(&mut self, source: &TcpStream) -> Result<(), Failure> {
        let mut buffer = self.size.buffer();
        let most = self.size.bytes();
        match try_read(source, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Failure::Source(error)),
            Ok(0) => self.ended = true,
            Ok(length) => {
                self.size.observe(length, most);
                self.look = self.size.bytes();
                self.waiting = Some(Waiting { buffer, from: 0, to: length });
            }
        }
        Ok(())
    }

    /// Writes what was read. Returns how much of it was.
    fn pass(&mut self, cx: &mut Context<'_>, sink: &TcpStream) -> Poll<Result<usize, Failure>> {
        let Some(Waiting { buffer, from, to }) = &mut self.waiting else { return Poll::Ready(Ok(0)) };
        ready!(sink.poll_write_ready(cx)).map_err(Failure::Sink)?;
        let written = match try_write(sink, &buffer[*from..*to]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written.map_err(Failure::Sink)?,
        };
        *from += written;
        if from == to {
            self.waiting = None;
        }
        Poll::Ready(Ok(written))
    }

    /// Passes on as much as the sink has room for, and leaves the rest with the source. Returns how much it was.
    fn look_and_pass(&mut self, source: &TcpStream, sink: &TcpStream) -> Result<usize, Failure> {
        let most = self.size.bytes();
        let mut buffer = self.size.buffer();
        let room = &mut buffer[..self.look.clamp(TAKEN_AT_ONCE, most)];
        match look_and_pass(source, sink, room)? {
            Looked::Nothing => Ok(0),
            Looked::End => {
                self.ended = true;
                Ok(0)
            }
            Looked::Passed { there, on } => {
                self.full = on < there;
                if self.full {
                    self.look = on;
                } else {
                    self.size.observe(there, room.len());
                    self.look = 2 * room.len();
                }
                Ok(on)
            }
        }
    }
}

fn look_and_pass(source: &TcpStream, sink: &TcpStream, room: &mut [u8]) -> Result<Looked, Failure> {
    let mut looked = Ok(Looked::Nothing);
    let tried = source.try_io(Interest::READABLE, || {
        let there = recv(source.as_raw_fd(), room, MsgFlags::MSG_PEEK)?;
        if there == 0 {
            looked = Ok(Looked::End);
            return Ok(());
        }
        let on = match try_write(sink, &room[..there]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => {
                looked = Err(Failure::Sink(error));
                return Ok(());
            }
            Ok(written) => written,
        };
        discard(source, &mut room[..on])?;
        looked = Ok(Looked::Passed { there, on });
        // The socket is taken to be empty, which saves a system call: the kernel reports new bytes. It would not report
        // bytes that were left there.
        if on == there && there < room.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match tried {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(Failure::Source(error)),
        _ => looked,
    }
}

/// Removes bytes from the source that are known to be there. The kernel copies nothing.
fn discard(source: &TcpStream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match recv(source.as_raw_fd(), bytes, MsgFlags::MSG_TRUNC)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            gone => bytes = &mut bytes[gone..],
        }
    }
    Ok(())
}
