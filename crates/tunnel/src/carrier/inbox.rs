//! What the peer sent that is for the library, until it takes it.

use std::io;
use std::task::{Context, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;

use super::frame::{DATA, END_STREAM, HEAD, Head, LARGEST_WINDOW};

/// Whole frames that may wait, bytes; beyond, nothing is read until the library has taken some: it may be
/// waiting for the peer to read its answers.
const MOST: usize = 64 << 10;

/// Memory that a connection keeps while no frame waits, bytes.
const KEPT: usize = 1 << 10;

#[derive(Default)]
pub(super) struct Inbox {
    /// The last may be incomplete.
    frames: BytesMut,
    /// Bytes of it that are whole frames.
    whole: usize,
    /// The transport ended. The library is told once it has got everything else.
    end: Option<io::Result<()>>,
    /// The library, where it waits for a frame.
    library: Option<Waker>,
}

impl Inbox {
    /// Nothing more is to be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.whole > MOST
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Adds a frame's bytes, which may not be all.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.frames.extend_from_slice(bytes);
    }

    /// The last frame has come whole.
    pub(super) fn frame_is_whole(&mut self) {
        self.whole = self.frames.len();
        self.wake();
    }

    /// The payload of the last frame, which has just become whole.
    pub(super) fn payload(&self, head: Head) -> &[u8] {
        &self.frames[self.frames.len() - head.length as usize..]
    }

    /// The library need not see the last frame.
    pub(super) fn withdraw(&mut self, head: Head) {
        self.frames.truncate(self.frames.len() - HEAD - head.length as usize);
    }

    /// The transport has ended.
    pub(super) fn end(&mut self, how: io::Result<()>) {
        self.end = Some(how);
        self.wake();
    }

    /// The connection is over: what waits is of no use any more.
    pub(super) fn forget(&mut self) {
        self.frames = BytesMut::new();
        self.whole = 0;
        self.end.get_or_insert_with(|| Err(io::ErrorKind::BrokenPipe.into()));
        self.wake();
    }

    /// Gives the library as much as has come whole and has room, nothing at the end. `None` if it
    /// has to wait.
    pub(super) fn give(&mut self, room: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        if self.whole == 0 {
            return match self.end.as_mut()? {
                Ok(()) => Some(Ok(())),
                // Told once; it can't be copied.
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

    /// Tells the library of a stream's end, between two frames.
    pub(super) fn tell_end(&mut self, stream: u32) {
        let end = Head { length: 0, kind: DATA, flags: END_STREAM, stream };
        let begun = self.frames[self.whole..].to_vec();
        self.frames.truncate(self.whole);
        self.frames.extend_from_slice(&end.bytes());
        self.frame_is_whole();
        self.frames.extend_from_slice(&begun);
    }

    /// Has the library end a stream whose window the peer has opened too far by the WINDOW_UPDATE that
    /// has just become whole. The library knows of no other: its own count lies between nothing and the
    /// largest, so one frame may not be beyond that, and two always are. It takes the second for late
    /// where the first was enough.
    pub(super) fn tell_overflow(&mut self, stream: u32) {
        let twice = Head::window_update(stream, LARGEST_WINDOW as u32);
        self.frames.truncate(self.frames.len() - twice.len());
        self.frames.extend_from_slice(&twice);
        self.frames.extend_from_slice(&twice);
    }
}

#[cfg(test)]
impl Inbox {
    /// Bytes that it takes.
    pub(super) fn memory(&self) -> usize {
        self.frames.capacity()
    }
}
