//! Frames of the peer other than DATA, as far as they concern streams or windows here. The library sees and judges most
//! of them as well.

use h2::Reason;

use super::violation::Violation;
use super::{Carrier, Role};
use crate::Error;
use crate::frame::{
    ACK, CONTINUATION, END_STREAM, GOAWAY, HEADERS, Head, INITIAL_WINDOW_SIZE, LARGEST_WINDOW, MAX_FRAME_SIZE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, word,
};

/// Cost of a request that its peer resets before it is answered (CVE-2023-44487), in frames without use: its destination
/// was looked up and connected to. Well-behaved peers reset 500 a second at most.
const GIVEN_UP: u32 = 20;

/// Cost of a request with which its peer breaks a rule. Well-behaved peers break none.
const BROKEN: u32 = 500;

/// The effect of a WINDOW_UPDATE.
enum Credited {
    /// The library need not see it.
    Here,
    /// The library has to see it, and judges it.
    Senseless,
    /// The stream's window exceeds the largest one: a stream error (RFC 9113 §6.9.1).
    TooFar,
}

impl Carrier {
    /// A frame other than DATA is complete. `ends_block`: so is a header block.
    pub(super) fn control_came(&mut self, head: Head, ends_block: bool) {
        self.tell_calm(head);
        if !self.library_needs(head) {
            return self.incoming.inbox.withdraw(head);
        }
        self.incoming.inbox.frame_is_whole();
        if ends_block {
            self.tell_late_ends();
        }
    }

    /// Applies what the frame means for the streams. Returns whether the library has to see it.
    fn library_needs(&mut self, head: Head) -> bool {
        match head.kind {
            HEADERS => {
                if self.role == Role::Server && head.stream > self.last_stream && head.stream % 2 == 1 {
                    self.begin(head.stream);
                }
                if let Some(stream) = self.streams.get_mut(&head.stream) {
                    stream.receiving.answer();
                }
                if head.has(END_STREAM) {
                    self.receive_ends(head.stream);
                }
            }
            RST_STREAM => {
                let code = Reason::from(word(self.incoming.inbox.payload(head), 0));
                self.stream_fails(head.stream, Error::Reset { code, by_peer: true });
            }
            SETTINGS if head.stream == 0 && !head.has(ACK) => self.peer_settings(head),
            // The peer has received our settings. Everything it sent before that has come.
            SETTINGS if head.stream == 0 => self.incoming.lenient = 0,
            GOAWAY if head.stream == 0 => {
                let (last, code) =
                    (word(self.incoming.inbox.payload(head), 0), word(self.incoming.inbox.payload(head), 4));
                self.peer_leaves(last & (u32::MAX >> 1), Reason::from(code));
            }
            WINDOW_UPDATE => {
                let increment = word(self.incoming.inbox.payload(head), 0) & (u32::MAX >> 1);
                match self.window_opens(head.stream, i64::from(increment)) {
                    Credited::Here => return false,
                    Credited::Senseless => {}
                    Credited::TooFar => self.incoming.inbox.tell_overflow(head.stream),
                }
            }
            _ => {}
        }
        true
    }

    /// Tells the library of stream ends that became due inside a header block.
    fn tell_late_ends(&mut self) {
        for (id, stream) in &mut self.streams {
            if stream.receiving.take_due() {
                self.incoming.inbox.tell_end(*id);
            }
        }
    }

    pub(super) fn stream_fails(&mut self, id: u32, error: Error) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.fail(error);
            self.leave_queue(id);
            self.forget_if_over(id);
        }
    }

    fn peer_settings(&mut self, head: Head) {
        let settings = self.incoming.inbox.payload(head);
        let (mut window, mut frame) = (None, None);
        // Invalid settings: the library is about to end the connection.
        for setting in settings.chunks_exact(6) {
            let (name, value) = (u16::from_be_bytes([setting[0], setting[1]]), word(setting, 2));
            match name {
                INITIAL_WINDOW_SIZE => window = Some(i64::from(value)).filter(|window| *window <= LARGEST_WINDOW),
                MAX_FRAME_SIZE => frame = Some(value as usize).filter(|size| (1 << 14..1 << 24).contains(size)),
                _ => {}
            }
        }
        if let Some(frame) = frame {
            self.outgoing.mux.largest_frame_is(frame);
        }
        if let Some(window) = window {
            self.initial_window_is(window);
        }
    }

    /// The peer accepts this many bytes more.
    fn window_opens(&mut self, id: u32, increment: i64) -> Credited {
        if increment == 0 || id > self.last_stream {
            return Credited::Senseless;
        }
        if id == 0 {
            let opened = self.outgoing.mux.opens(increment);
            if opened.too_far {
                self.too_large_a_window();
            }
            for id in opened.backlogged {
                self.send_backlog(id);
            }
            self.let_next();
        } else if let Some(stream) = self.streams.get_mut(&id) {
            let window = stream.window + increment;
            stream.window = window.min(LARGEST_WINDOW);
            stream.wake_sender();
            self.send_backlog(id);
            if window > LARGEST_WINDOW {
                return Credited::TooFar;
            }
        }
        Credited::Here
    }

    /// The initial window of the peer's streams has changed (RFC 9113 §6.9.2).
    fn initial_window_is(&mut self, window: i64) {
        let more = self.outgoing.mux.initial_window_is(window);
        let mut too_large = false;
        let mut backlogged = Vec::new();
        for (id, stream) in &mut self.streams {
            stream.window += more;
            too_large |= stream.window > LARGEST_WINDOW;
            stream.wake_sender();
            if !stream.backlog.is_empty() {
                backlogged.push(*id);
            }
        }
        for id in backlogged {
            self.send_backlog(id);
        }
        if too_large {
            self.too_large_a_window();
        }
    }

    fn too_large_a_window(&mut self) {
        let what = "the peer opened a window beyond the largest there is";
        self.violated(Violation::new(Reason::FLOW_CONTROL_ERROR, what));
    }

    /// The peer closes the connection and did not process our streams after `last`.
    fn peer_leaves(&mut self, last: u32, code: Reason) {
        if self.role != Role::Client {
            return;
        }
        let too_late: Vec<u32> = self.streams.keys().copied().filter(|id| *id > last).collect();
        for id in too_late {
            self.stream_fails(id, Error::GoAway { code, by_peer: true });
        }
    }

    /// Reports a frame to the flood protection if it costs more than it brings.
    fn tell_calm(&mut self, head: Head) {
        match head.kind {
            // The library allows few of them in a block.
            CONTINUATION => {}
            RST_STREAM => match self.streams.get(&head.stream).filter(|stream| stream.failure.is_none()) {
                Some(stream) if self.role == Role::Server && !stream.sending.is_open() => self.brings_nothing(GIVEN_UP),
                // They may end a stream, and the request itself was counted.
                Some(_) => {}
                None => self.brings_nothing(1),
            },
            _ => self.brings_nothing(1),
        }
    }

    /// The library reset a client's request for this reason. Without a count, a client could have any number of
    /// requests served and reset by breaking a rule in each (CVE-2025-8671).
    pub(super) fn was_reset_for(&mut self, reason: Reason) {
        if self.role == Role::Server && matches!(reason, Reason::PROTOCOL_ERROR | Reason::FLOW_CONTROL_ERROR) {
            self.brings_nothing(BROKEN);
        }
    }

    pub(super) fn brings_nothing(&mut self, frames: u32) {
        let borne = self.incoming.calm.spend(frames);
        self.is_calm(borne);
    }

    /// Ends the connection of a peer that floods.
    pub(super) fn is_calm(&mut self, borne: bool) {
        if !borne {
            let what = "the peer floods the connection with frames that bring nothing (ENHANCE_YOUR_CALM)";
            self.violated(Violation::new(Reason::ENHANCE_YOUR_CALM, what));
        }
    }
}
