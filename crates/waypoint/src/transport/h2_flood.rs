//! Whether a client floods its HTTP/2 connection with frames that bring nothing.
//!
//! The HTTP library bounds what such frames cost in memory, and ends a connection for some of them. PINGs, SETTINGS,
//! WINDOW_UPDATEs, PRIORITYs and kinds that it does not know it answers or skips without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use leno_tunnel::calm::Calm;
use leno_tunnel::frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Head, PADDED, PREFACE, PRIORITIZED, Piece, Splitter,
};

use super::h2_budget::{Common, Pace};
use super::header_count::Fields;

/// How many frames without use a client may send within ten seconds, besides those that it earns.
const BORNE: u32 = 100_000;

/// A request that is given up has cost a route, a policy's judgement and perhaps a request to an endpoint.
const GIVEN_UP: u32 = 8;

/// The error code for floods (RFC 9113 §7).
const ENHANCE_YOUR_CALM: u32 = 11;

/// After a request that is given up, so many others are begun only after the frames that came with them.
const DOUBTFUL: u32 = 256;

/// Fewer bytes than this, written at once, may be nothing but answers to frames without use.
const ANSWER: usize = 64;

/// Fewer bytes than this in a frame of DATA are no message: the head of an empty one of gRPC has as many.
const MESSAGE: u32 = 5;

/// Frames that are read before others of the thread have their turn: each costs about a microsecond, however short it is.
const TURN: u32 = 64;

/// A request costs a turn as much as this many frames, whatever becomes of it.
const REQUEST: u32 = 8;

/// A head may make a turn longer than others may, so that the frame which resets its request is read in the same one. A
/// request that is seen to be reset is not begun.
const HEAD_TURN: u32 = TURN + 2 * REQUEST;

/// Fields of a head that cost as much as a frame.
const FIELDS: u32 = 4;

/// Fields that a head may have. Each one more counts as a frame without use. Programs send some dozens; Envoy's usual limit is
/// 100.
const FIELDS_MOST: u32 = 256;

/// Follows what a client sends.
#[derive(Debug)]
pub(crate) struct Frames {
    splitter: Splitter,
    calm: Calm,
    pace: Pace,
    /// Frames without use that the client has sent faster than it may.
    owed: u32,
    /// Frames that have been read without a break.
    turn: u32,
    /// Whether the turn ends with the current frame.
    last: bool,
    /// Whether there was a break since the last look.
    rested: bool,
    /// Whether what is sent ends with a whole frame.
    whole: bool,
    flooded: bool,
    heads: Heads,
    requests: Arc<Requests>,
}

/// The heads of requests that have come since the last break.
#[derive(Debug, Default)]
struct Heads {
    /// The last request's stream. Later heads on it are trailers.
    stream: u32,
    /// Whether one is being read, trailers among them.
    open: bool,
    /// Whether it ends with the current frame.
    ends: bool,
    /// Whether it is a request's first.
    first: bool,
    /// Bytes before the fields of the current frame: how much of it is padding, and its priority.
    before: usize,
    /// The place in it.
    at: Fields,
    /// Its fields so far.
    fields: u32,
    /// Requests whose heads are complete.
    complete: u32,
}

/// What came of a connection's requests, for who follows its frames.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    looked_at: AtomicU32,
    given_up: AtomicU32,
    broken: AtomicBool,
    /// Nothing more is read in this turn of the connection's task.
    resting: AtomicBool,
    /// How many of the next requests may be given up as others were.
    doubtful: AtomicU32,
}

impl Requests {
    /// The library has not refused a request. Returns whether it is in doubt that its client waits for the response.
    pub(crate) fn looked_at(&self) -> bool {
        self.looked_at.fetch_add(1, Relaxed);
        let doubtful = self.doubtful.load(Relaxed);
        self.doubtful.store(doubtful.saturating_sub(1), Relaxed);
        doubtful > 0
    }

    /// Waits for the frames that came with a request: one that is reset by them is not even begun. An endpoint would count
    /// such against the waypoint, and end the connection that others use.
    pub(crate) async fn settled(&self) {
        let mut begun = Begun { requests: self, settled: false };
        tokio::task::yield_now().await;
        begun.settled = true;
    }

    /// The connection's task has its next turn: others have had theirs, and so have the requests that were read in the last one.
    pub(crate) fn next_turn(&self) {
        self.resting.store(false, Relaxed);
    }

    /// The client has not waited for a response. It has reset the request, or made the waypoint reset it: by a frame that is
    /// wrong.
    pub(crate) fn given_up(&self) {
        self.given_up.fetch_add(1, Relaxed);
    }

    /// Whether its client has given up others of late.
    #[cfg(test)]
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed) > 0
    }

    /// The client has broken the protocol, and may have been told.
    pub(crate) fn broken(&self) {
        self.broken.store(true, Relaxed);
    }
}

/// A request that may turn out to be reset.
struct Begun<'a> {
    requests: &'a Requests,
    settled: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.requests.given_up();
        }
    }
}

/// What came of a look at a client's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All of them may be read.
    All,
    /// So many of them may be read; then others of the thread have their turn.
    Turn(usize),
    /// The client floods.
    Flood,
}

impl Frames {
    pub(crate) fn new(requests: Arc<Requests>, common: Arc<Common>) -> Self {
        Self::bearing(BORNE, requests, common)
    }

    fn bearing(frames: u32, requests: Arc<Requests>, common: Arc<Common>) -> Self {
        Self {
            splitter: Splitter::new(PREFACE),
            calm: Calm::bearing(frames),
            pace: Pace::new(common),
            owed: 0,
            turn: 0,
            last: false,
            rested: false,
            whole: true,
            flooded: false,
            heads: Heads::default(),
            requests,
        }
    }

    /// Whether more may be read now. If not, the connection pauses for [`super::h2_budget::PAUSE`].
    pub(crate) fn may_go_on(&mut self) -> bool {
        while self.owed > 0 {
            let some = self.owed.min(GIVEN_UP);
            if !self.pace.take(some) {
                return false;
            }
            self.owed -= some;
        }
        true
    }

    /// Nothing more is read before the library has done with what was: the next frame begins a turn.
    pub(crate) fn rest(&mut self) {
        (self.turn, self.last, self.rested) = (0, false, true);
    }

    /// Nothing more is read before the connection's task has its next turn. The library asks again after each request that it
    /// hands on. What it got then would be read before the requests before it were even looked at, and they would count as
    /// refused.
    pub(crate) fn rest_for_this_turn(&mut self) {
        self.rest();
        self.requests.resting.store(true, Relaxed);
    }

    /// Whether nothing is read in this turn any more.
    pub(crate) fn is_resting(&self) -> bool {
        self.requests.resting.load(Relaxed)
    }

    /// Looks at the next bytes that have come.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Look {
        let look = self.look_at(bytes);
        self.flooded = look == Look::Flood;
        look
    }

    fn look_at(&mut self, bytes: &[u8]) -> Look {
        if std::mem::take(&mut self.rested) && !self.settle() {
            return Look::Flood;
        }
        let mut at = 0;
        while let Some(piece) = self.splitter.next(bytes, &mut at) {
            let head = match piece {
                Piece::Preface(_) => continue,
                Piece::Payload(range, complete) => {
                    let fields = self.heads.payload(&bytes[range], complete);
                    self.turn += fields / FIELDS;
                    self.owed += fields.min(self.heads.fields.saturating_sub(FIELDS_MOST));
                    if self.turn >= HEAD_TURN || self.last && complete {
                        return Look::Turn(at);
                    }
                    continue;
                }
                Piece::Head(head) => head,
            };
            let is_head = matches!(head.kind, HEADERS | CONTINUATION);
            let (calm, useless, turn) = match head.kind {
                // How much of it is padding is not looked at.
                DATA => {
                    let length = if head.has(PADDED) { 0 } else { head.length };
                    (self.calm.received(length), length < MESSAGE && !head.has(END_STREAM), 1)
                }
                // How many requests there may be at once, and how large their heads are, has limits of its own.
                _ if is_head => (true, false, if self.heads.begin(head) { REQUEST } else { 1 }),
                _ => (self.calm.spend(1), true, 1),
            };
            if !calm {
                return Look::Flood;
            }
            self.owed += u32::from(useless);
            self.turn += turn;
            let most = if is_head { HEAD_TURN } else { TURN };
            self.last = self.turn >= most || useless && !self.may_go_on();
            if self.last && head.length == 0 {
                return Look::Turn(at);
            }
        }
        Look::All
    }

    /// Counts what came of the requests that were read before the break. Returns false if the client floods.
    fn settle(&mut self) -> bool {
        let given_up = self.requests.given_up.swap(0, Relaxed);
        // Most are malformed, or have a head that is too large.
        let refused = std::mem::take(&mut self.heads.complete).saturating_sub(self.requests.looked_at.swap(0, Relaxed));
        if given_up == 0 && refused == 0 {
            return true;
        }
        self.requests.doubtful.store(DOUBTFUL, Relaxed);
        let frames = given_up.saturating_add(refused).saturating_mul(GIVEN_UP);
        // What was asked in vain has been asked of an endpoint as well, and told in the log.
        self.owed = self.owed.saturating_add(frames).saturating_add(given_up.saturating_mul(GIVEN_UP));
        self.calm.spend(frames)
    }

    /// Whether the connection ends because of what the client did, which it should hear before it is cut.
    pub(crate) fn is_broken(&self) -> bool {
        self.flooded || self.requests.broken.load(Relaxed)
    }

    /// The frame that tells a client why its connection ends, if it has flooded it and can be told.
    pub(crate) fn farewell(&self) -> Option<[u8; 17]> {
        (self.flooded && self.whole).then(|| Head::goaway(self.heads.stream, ENHANCE_YOUR_CALM))
    }

    /// This many bytes of those that were to be were sent to the client: it may answer.
    pub(crate) fn sent(&mut self, bytes: usize, of: usize) {
        self.whole = bytes == of;
        if bytes > ANSWER {
            self.calm.sent(bytes);
            self.pace.sent(bytes);
        }
    }
}

impl Heads {
    /// A frame begins that belongs to one. Returns whether it opens a request.
    fn begin(&mut self, frame: Head) -> bool {
        if frame.kind == HEADERS {
            (self.open, self.first) = (true, frame.stream > self.stream);
            self.stream = self.stream.max(frame.stream);
            self.before = if frame.has(PADDED) { 1 } else { 0 } + if frame.has(PRIORITIZED) { 5 } else { 0 };
            (self.at, self.fields) = (Fields::default(), 0);
        }
        self.ends = frame.has(END_HEADERS);
        if frame.length == 0 {
            self.payload(&[], true);
        }
        frame.kind == HEADERS && self.first
    }

    /// More of a frame has come, and whether that is all of it. Returns how many fields begin there.
    fn payload(&mut self, bytes: &[u8], complete: bool) -> u32 {
        if !self.open {
            return 0;
        }
        let before = self.before.min(bytes.len());
        self.before -= before;
        let begun = self.at.begun(&bytes[before..]);
        self.fields = self.fields.saturating_add(begun);
        if complete && self.ends {
            self.open = false;
            self.complete += u32::from(self.first);
        }
        begun
    }
}

#[cfg(test)]
#[path = "h2_flood_tests.rs"]
mod tests;
