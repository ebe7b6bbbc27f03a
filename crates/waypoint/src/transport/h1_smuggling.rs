//! Where requests begin and end in the bytes of an HTTP/1.1 connection, and whether one says it in two ways.
//!
//! The HTTP library reads the messages. It forgives what another parser may read differently: it drops a length beside
//! chunks without a word, as RFC 9112 §6.3 allows, and takes a bare LF for the end of a line (§2.2). Behind a proxy that is
//! not what a client wants, but what an attacker tries (§11.2). So the same bytes are looked at here, and the request is
//! refused with whatever comes after it.

use std::sync::OnceLock;

use memchr::memchr;

/// What is ambiguous in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ambiguity {
    /// `Content-Length` and `Transfer-Encoding`.
    TwoLengths,
    /// A `Transfer-Encoding` that is not `chunked`, once.
    Coding,
    /// A line that ends with LF and no CR.
    BareLf,
    /// What the library refuses as well. Nothing is known of what comes after it.
    Unreadable,
}

impl Ambiguity {
    /// For the client and the log.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::TwoLengths => {
                "the request has both a Content-Length and a Transfer-Encoding; a client sends one of them (RFC 9112 §6.2)"
            }
            Self::Coding => {
                "the request has a Transfer-Encoding that is not `chunked`, once; no other one is understood (RFC 9112 §6.1)"
            }
            Self::BareLf => "a line of the request ends with LF alone; HTTP ends lines with CR and LF (RFC 9112 §2.2)",
            Self::Unreadable => "it is not clear where this request, or the one before it, ends",
        }
    }
}

/// The first ambiguous request of a connection, told across the library to whoever serves its requests.
#[derive(Debug, Default)]
pub(crate) struct Doubt(OnceLock<(u64, Ambiguity)>);

impl Doubt {
    /// What is wrong with the connection's request `number`, counted from 1, or one before it.
    pub(crate) fn about(&self, number: u64) -> Option<Ambiguity> {
        self.0.get().filter(|(first, _)| *first <= number).map(|(_, what)| *what)
    }

    /// Notes what is wrong with a request. The first one counts.
    pub(crate) fn tell(&self, number: u64, what: Ambiguity) {
        let _ = self.0.set((number, what));
    }
}

/// As much of a line is kept that comes in several pieces. No line that is looked into is longer, unless somebody plays with
/// spaces.
const KEPT: usize = 256;

/// Follows a connection's requests.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// The last byte of that line, of which only the beginning is kept.
    last: u8,
    cut: bool,
    requests: u64,
    /// Of the head that is being read.
    length: Option<u64>,
    chunked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A request line, or an empty line before one.
    Begin,
    Head,
    /// Bytes of a body that are still to come.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// Whatever comes now is not looked at.
    Given,
}

const LENGTH: &[u8] = b"content-length:";
const ENCODING: &[u8] = b"transfer-encoding:";

impl Default for Framing {
    fn default() -> Self {
        Self { state: State::Begin, line: Vec::new(), last: 0, cut: false, requests: 0, length: None, chunked: false }
    }
}

impl Framing {
    /// Requests that have begun.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Looks at the next bytes of the connection.
    ///
    /// # Errors
    /// If they make the request ambiguous that [`Self::requests`] counts last. Nothing is looked at after that.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Result<(), Ambiguity> {
        let looked = self.follow(bytes);
        if looked.is_err() {
            self.state = State::Given;
        }
        looked
    }

    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Ambiguity> {
        while !bytes.is_empty() {
            match self.state {
                State::Given => return Ok(()),
                State::Body(left) => {
                    let left = skip(&mut bytes, left);
                    self.state = if left == 0 { State::Begin } else { State::Body(left) };
                }
                State::Chunk(left) => {
                    let left = skip(&mut bytes, left);
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                }
                State::Begin | State::Head | State::ChunkSize | State::ChunkEnd | State::Trailers => {
                    let Some(end) = memchr(b'\n', bytes) else {
                        self.keep(bytes);
                        return Ok(());
                    };
                    let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
                    if self.line.is_empty() {
                        self.line(line.strip_suffix(b"\r"), false)?;
                    } else {
                        self.keep(line);
                        let (mut kept, cut) = (std::mem::take(&mut self.line), self.cut);
                        let ends = self.last == b'\r';
                        if ends && !cut {
                            kept.pop();
                        }
                        self.line(ends.then_some(&kept), cut)?;
                        kept.clear();
                        (self.line, self.cut) = (kept, false);
                    }
                    bytes = rest;
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.last = *last;
        let room = KEPT - self.line.len();
        self.cut |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// A line has ended; `None` if without a CR. Of a line that is `cut`, this is the beginning.
    fn line(&mut self, line: Option<&[u8]>, cut: bool) -> Result<(), Ambiguity> {
        if matches!(self.state, State::Begin) && line.is_none_or(|line| !line.is_empty()) {
            self.requests += 1;
            (self.length, self.chunked) = (None, false);
        }
        let line = line.ok_or(Ambiguity::BareLf)?;
        self.state = match self.state {
            State::Begin if line.is_empty() => State::Begin,
            State::Begin => State::Head,
            State::Head if line.is_empty() => match (self.chunked, self.length) {
                (true, Some(_)) => return Err(Ambiguity::TwoLengths),
                (true, None) => State::ChunkSize,
                (false, Some(1..)) => State::Body(self.length.unwrap_or_default()),
                (false, _) => State::Begin,
            },
            State::Head => {
                self.field(line, cut)?;
                State::Head
            }
            State::ChunkSize => match chunk_size(line).ok_or(Ambiguity::Unreadable)? {
                0 => State::Trailers,
                size => State::Chunk(size),
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkEnd => return Err(Ambiguity::Unreadable),
            State::Trailers if line.is_empty() => State::Begin,
            other => other,
        };
        Ok(())
    }

    fn field(&mut self, line: &[u8], cut: bool) -> Result<(), Ambiguity> {
        let is = |name: &[u8]| line.len() >= name.len() && line[..name.len()].eq_ignore_ascii_case(name);
        if is(ENCODING) {
            let coding = line[ENCODING.len()..].trim_ascii();
            if cut || self.chunked || !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Ambiguity::Coding);
            }
            self.chunked = true;
        } else if is(LENGTH) {
            let length = number(line[LENGTH.len()..].trim_ascii(), 10).filter(|_| !cut).ok_or(Ambiguity::Unreadable)?;
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err(Ambiguity::Unreadable);
            }
        }
        Ok(())
    }
}

/// Skips bytes of a body. Returns how many are still to come.
fn skip(bytes: &mut &[u8], left: u64) -> u64 {
    let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = &bytes[skipped..];
    left - skipped as u64
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = memchr(b';', line).map_or(line, |extension| &line[..extension]);
    number(size.trim_ascii_end(), 16)
}

/// A number of nothing but digits.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
#[path = "h1_smuggling_tests.rs"]
mod tests;
