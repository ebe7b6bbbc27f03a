//! The multiplexer: all streams send out of one window, and this says which of them may, and how much.

use std::collections::VecDeque;

use super::frame::LARGEST_WINDOW;
use super::{DEFAULT_FRAME, DEFAULT_WINDOW};

pub(super) struct Mux {
    /// Bytes that the peer will take on this connection.
    window: i64,
    /// What the peer takes of a new stream.
    initial_window: i64,
    largest_frame: usize,
    /// Streams with something to send that the connection has no room for, in their order. The
    /// first is woken when there is room, and lets the next on when it has sent.
    queue: VecDeque<u32>,
    /// Streams whose backlog waits for the connection's window.
    backlogged: Vec<u32>,
}

/// What a stream that wants to send is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may send so many bytes.
    Yours(usize),
    /// It is to wait until it is woken.
    Waits,
}

/// What a larger window of the connection leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Streams whose backlog may go now.
    pub(super) backlogged: Vec<u32>,
    /// It is larger than there are windows, which is an error of the connection (RFC 9113 §6.9.1).
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

    /// New streams have this window; says how much more those that are open have.
    pub(super) fn initial_window_is(&mut self, window: i64) -> i64 {
        window - std::mem::replace(&mut self.initial_window, window)
    }

    /// What a stream may send whose own window is `window`; nothing, or less, if it may not.
    pub(super) fn room(&self, window: i64) -> i64 {
        window.min(self.window)
    }

    /// So many bytes are sent.
    pub(super) fn take(&mut self, bytes: usize) {
        self.window -= bytes as i64;
    }

    /// A stream wants to send that can, with this window of its own. `queued`: it stands in the queue. `blocked`: there
    /// is no room for anybody, whatever the windows.
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

    /// A stream in the queue does not wait any more.
    pub(super) fn leaves(&mut self, id: u32) {
        self.queue.retain(|queued| *queued != id);
    }

    /// Nobody waits any more.
    pub(super) fn all_leave(&mut self) {
        self.queue.clear();
    }

    /// Whether somebody waits for room.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The stream whose turn it is, if the window has room.
    pub(super) fn next(&self) -> Option<u32> {
        if self.window > 0 { self.queue.front().copied() } else { None }
    }

    /// A stream's backlog waits for the connection's window. Once: the peer may open the stream's own any number of times
    /// meanwhile.
    pub(super) fn backlog_waits(&mut self, id: u32) {
        if !self.backlogged.contains(&id) {
            self.backlogged.push(id);
        }
    }

    /// The peer takes so many bytes more on this connection.
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
