//! The multiplexer: all streams share the connection's send window. This decides which stream may send, and how much.

use std::collections::VecDeque;

use super::{DEFAULT_FRAME, DEFAULT_WINDOW};
use crate::frame::LARGEST_WINDOW;

pub(super) struct Mux {
    /// Bytes that the peer will take on this connection.
    window: i64,
    /// The send window of a new stream.
    initial_window: i64,
    largest_frame: usize,
    /// Streams that wait for room in the connection's window, in order. The first is woken when there is room, and wakes
    /// the next one when it has sent.
    queue: VecDeque<u32>,
    /// Streams whose backlog waits for the connection's window.
    backlogged: Vec<u32>,
}

/// The answer to a stream that wants to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The stream may send this many bytes.
    Yours(usize),
    /// The stream must wait until it is woken.
    Waits,
}

/// The effect of a larger window of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Streams whose backlog may be sent now.
    pub(super) backlogged: Vec<u32>,
    /// The window exceeds the largest one, which is a connection error (RFC 9113 §6.9.1).
    pub(super) too_far: bool,
}

impl Mux {
    pub(super) fn new() -> Self {
        Self {
            window: i64::from(DEFAULT_WINDOW),
            initial_window: i64::from(DEFAULT_WINDOW),
            largest_frame: DEFAULT_FRAME,
            queue: VecDeque::new(),
            backlogged: Vec::new(),
        }
    }

    /// The window that a new stream has.
    pub(super) fn initial_window(&self) -> i64 {
        self.initial_window
    }

    pub(super) fn largest_frame(&self) -> usize {
        self.largest_frame
    }

    pub(super) fn largest_frame_is(&mut self, bytes: usize) {
        self.largest_frame = bytes;
    }

    /// Sets the window of new streams. Returns by how much the windows of open streams change.
    pub(super) fn initial_window_is(&mut self, window: i64) -> i64 {
        window - std::mem::replace(&mut self.initial_window, window)
    }

    /// How much a stream with the window `window` may send. Zero or negative if nothing.
    pub(super) fn room(&self, window: i64) -> i64 {
        window.min(self.window)
    }

    /// This many bytes are sent.
    pub(super) fn take(&mut self, bytes: usize) {
        self.window -= bytes as i64;
    }

    /// Asks whether stream `id` may send, given its own window. `queued`: whether it is in the queue. `blocked`: whether
    /// nobody can send now, whatever the windows.
    pub(super) fn turn(&mut self, id: u32, window: i64, queued: &mut bool, blocked: bool) -> Turn {
        let is_first = self.queue.front().is_none_or(|first| *first == id);
        if blocked || self.window <= 0 || !is_first {
            if !std::mem::replace(queued, true) {
                self.queue.push_back(id);
            }
            return Turn::Waits;
        }
        if std::mem::take(queued) {
            self.queue.pop_front();
        }
        Turn::Yours(self.room(window) as usize)
    }

    /// A stream leaves the queue.
    pub(super) fn leaves(&mut self, id: u32) {
        self.queue.retain(|queued| *queued != id);
    }

    /// Empties the queue.
    pub(super) fn all_leave(&mut self) {
        self.queue.clear();
    }

    /// Whether a stream waits for room.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The stream whose turn it is, if the window has room.
    pub(super) fn next(&self) -> Option<u32> {
        if self.window > 0 { self.queue.front().copied() } else { None }
    }

    /// A stream's backlog waits for the connection's window. Each stream is listed once, because the peer may open the
    /// stream's own window any number of times meanwhile.
    pub(super) fn backlog_waits(&mut self, id: u32) {
        if !self.backlogged.contains(&id) {
            self.backlogged.push(id);
        }
    }

    /// The peer accepts this many bytes more on the connection.
    pub(super) fn opens(&mut self, increment: i64) -> Opened {
        self.window += increment;
        Opened { backlogged: std::mem::take(&mut self.backlogged), too_far: self.window > LARGEST_WINDOW }
    }
}

#[cfg(test)]
impl Mux {
    pub(super) fn window(&self) -> i64 {
        self.window
    }

    pub(super) fn backlogged(&self) -> &[u32] {
        &self.backlogged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_their_turns_in_the_order_in_which_they_asked() {
        let mut mux = Mux::new();
        let (mut one, mut other, mut third) = (false, false, false);
        mux.take(DEFAULT_WINDOW as usize);
        assert_eq!(mux.turn(1, 100, &mut one, false), Turn::Waits);
        assert_eq!(mux.turn(3, 100, &mut other, false), Turn::Waits);
        assert_eq!(mux.turn(5, 100, &mut third, false), Turn::Waits);
        // Asking again changes nothing.
        assert_eq!(mux.turn(3, 100, &mut other, false), Turn::Waits);
        assert_eq!(mux.next(), None, "there is no room");
        assert_eq!(mux.opens(40), Opened { backlogged: Vec::new(), too_far: false });
        assert_eq!(mux.next(), Some(1));
        mux.leaves(1);
        assert_eq!(mux.turn(5, 100, &mut third, false), Turn::Waits, "out of turn");
        assert_eq!(mux.turn(3, 100, &mut other, true), Turn::Waits, "the transport is full");
        assert_eq!(mux.turn(3, 100, &mut other, false), Turn::Yours(40), "the connection's window");
        mux.take(40);
        assert_eq!((mux.next(), other), (None, false));
        mux.opens(40);
        assert_eq!(mux.turn(5, 10, &mut third, false), Turn::Yours(10), "its own window");
        assert!(!mux.is_waited_for());
    }

    #[test]
    fn a_backlog_is_told_once_when_there_is_room() {
        let mut mux = Mux::new();
        mux.take(DEFAULT_WINDOW as usize);
        for id in [1, 3, 1, 1] {
            mux.backlog_waits(id);
        }
        assert_eq!(mux.opens(1), Opened { backlogged: vec![1, 3], too_far: false });
        assert_eq!(mux.opens(LARGEST_WINDOW - 1), Opened { backlogged: Vec::new(), too_far: false });
        assert!(mux.opens(1).too_far);
    }
}
