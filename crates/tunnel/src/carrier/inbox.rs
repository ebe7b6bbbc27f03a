//! Frames of the peer that wait for the library to read them.

use std::io;
use std::task::{Context, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;

use crate::frame::{DATA, END_STREAM, HEAD, Head, LARGEST_WINDOW};

/// Most bytes of complete frames that may wait. Beyond that, nothing is read until the library has taken some, because
/// it may be waiting for the peer to read its answers.
const MOST: usize = 64 << 10;

/// Memory that a connection keeps while no frame waits, bytes.
const KEPT: usize = 1 << 10;

#[derive(Default)]
pub(super) struct Inbox {
    /// The last frame may be incomplete.
    frames: BytesMut,
    /// Bytes of complete frames.
    whole: usize,
    /// Set when the transport has ended. The library is told after it has got everything else.
    end: Option<io::Result<()>>,
    /// The library, if it waits for a frame.
    library: Option<Waker>,
}

impl Inbox {
    /// Whether nothing more should be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.whole > MOST
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Adds bytes of a frame.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.frames.extend_from_slice(bytes);
    }

    /// The last frame is complete.
    pub(super) fn frame_is_whole(&mut self) {
        self.whole = self.frames.len();
        self.wake();
    }

    /// The payload of the last frame, which has just become complete.
    pub(super) fn payload(&self, head: Head) -> &[u8] {
        &self.frames[self.frames.len() - head.length as usize..]
    }

    /// Removes the last frame, which the library need not see.
    pub(super) fn withdraw(&mut self, head: Head) {
        self.frames.truncate(self.frames.len() - HEAD - head.length as usize);
    }

    /// The transport has ended.
    pub(super) fn end(&mut self, how: io::Result<()>) {
        self.end = Some(how);
        self.wake();
    }

    /// The connection is over: drops everything that waits.
    pub(super) fn forget(&mut self) {
        self.frames = BytesMut::new();
        self.whole = 0;
        self.end.get_or_insert_with(|| Err(io::ErrorKind::BrokenPipe.into()));
        self.wake();
    }

    /// Copies complete frames into `room`, as many as fit. At the end of the transport, copies nothing. `None` if the
    /// library has to wait.
    pub(super) fn give(&mut self, room: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        if self.whole == 0 {
            return match self.end.as_mut()? {
                Ok(()) => Some(Ok(())),
                // Returned once, because it can't be copied.
                end => Some(std::mem::replace(end, Ok(()))),
            };
        }
        let length = room.remaining().min(self.whole);
        room.put_slice(&self.frames[..length]);
        self.frames.advance(length);
        self.whole -= length;
        if self.frames.is_empty() && self.frames.capacity() > KEPT {
            self.frames = BytesMut::new();
        }
        Some(Ok(()))
    }

    /// The library waits for a frame.
    pub(super) fn waits(&mut self, cx: &Context<'_>) {
        self.library = Some(cx.waker().clone());
    }

    fn wake(&mut self) {
        if let Some(library) = self.library.take() {
            library.wake();
        }
    }

    /// Tells the library that a stream has ended, between two frames.
    pub(super) fn tell_end(&mut self, stream: u32) {
        let end = Head { length: 0, kind: DATA, flags: END_STREAM, stream };
        let begun = self.frames[self.whole..].to_vec();
        self.frames.truncate(self.whole);
        self.frames.extend_from_slice(&end.bytes());
        self.frame_is_whole();
        self.frames.extend_from_slice(&begun);
    }

    /// Makes the library end a stream whose window the peer has opened too far with the WINDOW_UPDATE that has just
    /// become complete. The library does not know the stream's real window. Its own count lies between zero and the
    /// maximum, so one further frame may not exceed the limit, but two always do. If one was enough, it treats the
    /// second as late.
    pub(super) fn tell_overflow(&mut self, stream: u32) {
        let twice = Head::window_update(stream, LARGEST_WINDOW as u32);
        self.frames.truncate(self.frames.len() - twice.len());
        self.frames.extend_from_slice(&twice);
        self.frames.extend_from_slice(&twice);
    }
}

#[cfg(test)]
impl Inbox {
    /// Memory in use, bytes.
    pub(super) fn memory(&self) -> usize {
        self.frames.capacity()
    }
}
