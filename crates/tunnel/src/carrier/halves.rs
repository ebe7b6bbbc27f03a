//! The state of a stream: who holds it, and the state of the peer's half and of ours.

use super::Role;

/// Who holds a stream's lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody yet. Received bytes are kept.
    Awaited,
    Somebody,
    /// Nobody any more. Received bytes are discarded.
    Gone,
}

/// The peer's half of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Its headers have not come yet.
    Awaited,
    /// Its headers have come. Bytes that a server sends after them may belong to a refusal and are ignored.
    Answered,
    /// The stream is a tunnel. Received bytes are for its program.
    Tunnel,
    /// It ended before the stream became a tunnel. The library is not told: it would compare a refusal's
    /// `content-length` with the DATA bytes that it has seen, which are none.
    EndUntold,
    /// The stream became a tunnel after that. The library must be told of the end as soon as possible.
    EndDue,
    /// It has ended, and the library knows.
    Ended,
}

impl Receiving {
    pub(super) fn answer(&mut self) {
        if *self == Self::Awaited {
            *self = Self::Answered;
        }
    }

    pub(super) fn is_answered(self) -> bool {
        self != Self::Awaited
    }

    /// The stream becomes a tunnel.
    pub(super) fn accept(&mut self) {
        match self {
            Self::Awaited | Self::Answered => *self = Self::Tunnel,
            Self::EndUntold => *self = Self::EndDue,
            Self::Tunnel | Self::EndDue | Self::Ended => {}
        }
    }

    /// It ends with a frame that the library does not see. Returns whether the library must be told.
    pub(super) fn end_beside(&mut self, role: Role) -> bool {
        let told = role == Role::Server || *self == Self::Tunnel;
        *self = if told { Self::Ended } else { Self::EndUntold };
        told
    }

    /// It ends with a frame that the library sees.
    pub(super) fn end(&mut self) {
        if !self.has_ended() {
            *self = Self::Ended;
        }
    }

    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::EndUntold | Self::EndDue | Self::Ended)
    }

    /// Whether the library must be told of the end now. The caller then does so.
    pub(super) fn take_due(&mut self) -> bool {
        let due = *self == Self::EndDue;
        if due {
            *self = Self::Ended;
        }
        due
    }
}

/// Our half of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// The headers after which DATA may be sent have not been written yet.
    Unopened,
    /// A part of its headers was written, and they end the half.
    Ending,
    Open,
    Ended,
}

impl Sending {
    /// Its headers were written. Returns whether they are the first.
    pub(super) fn open(&mut self) -> bool {
        let opened = match self {
            Self::Unopened => Self::Open,
            Self::Ending => Self::Ended,
            Self::Open | Self::Ended => return false,
        };
        *self = opened;
        true
    }

    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Ended)
    }

    /// A frame that ends it was written.
    pub(super) fn end(&mut self) {
        *self = if self.is_open() { Self::Ended } else { Self::Ending };
    }

    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Ending | Self::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusals_end_is_never_told_and_a_tunnels_always() {
        let mut refused = Receiving::Awaited;
        refused.answer();
        assert!(!refused.end_beside(Role::Client) && refused.has_ended() && !refused.take_due());

        let mut late = refused;
        late.accept();
        assert!(late.take_due() && !late.take_due() && late.has_ended());

        let mut tunnel = Receiving::Answered;
        tunnel.accept();
        assert!(!tunnel.has_ended() && tunnel.end_beside(Role::Client) && !tunnel.take_due());

        // A client's request is always read.
        let mut asked = Receiving::Answered;
        assert!(asked.end_beside(Role::Server) && asked.has_ended());

        // The library is not told of an end that it has seen.
        let mut seen = Receiving::Answered;
        seen.end();
        seen.accept();
        assert!(seen.has_ended() && !seen.take_due());
    }

    #[test]
    fn headers_that_end_the_stream_open_it_first() {
        let mut sending = Sending::Unopened;
        sending.end();
        assert!(sending.has_ended() && !sending.is_open());
        assert!(sending.open() && sending.has_ended() && sending.is_open());
        // Trailers do not open the stream.
        assert!(!sending.open());

        let mut sending = Sending::Unopened;
        assert!(sending.open() && !sending.open() && !sending.has_ended());
        sending.end();
        assert_eq!(sending, Sending::Ended);
    }
}
