//! What a peer has sent of its handshake and is not understood yet. A peer that has proved nothing decides how much
//! that is, so it is bounded: for each handshake, and over all of the process.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Poll, ready};
use std::{future, io};

use tokio::io::{AsyncRead, ReadBuf};

use crate::HandshakeError;
use crate::buffer::Buffer;
use crate::record::{HEADER, MAX_RECORD};
use crate::unproven::{Unproven, UnprovenPlace};

/// Read at a time where no record asks for more, bytes. All that a peer usually sends at once fits.
const READ: usize = 4 << 10;

/// Held for each handshake whatever others do, bytes. Usual messages are shorter: a ClientHello with a post-quantum
/// key has 1.5 KiB, a chain of three RSA certificates 5 KiB.
const OWN: usize = 8 << 10;

/// Longest ClientHello or ServerHello that is taken, bytes, with the heads of its records. It is sent before anything
/// is encrypted.
const HELLO: usize = 16 << 10;

/// Most bytes that are taken of messages that come after those, which is where certificates are. The TLS library
/// refuses a message of more than 64 KiB; the heads of its records come on top.
const FLIGHT: usize = 68 << 10;

/// So many handshakes of the process at a time may hold more than [`OWN`]: 18 MiB at most.
const LARGE: usize = 256;

static LARGE_PLACES: LazyLock<Arc<Unproven<()>>> = LazyLock::new(|| Unproven::unshared(LARGE));

/// Type of a record that holds a handshake message in the clear.
const HANDSHAKE: u8 = 22;

/// Received bytes of a handshake. The TLS library is shown them record by record: what follows the handshake's last
/// record must be left to the keys that this handshake is for.
#[derive(Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    shown: usize,
    large: Option<UnprovenPlace<()>>,
}

impl Gathered {
    /// The records that are shown. They may be changed.
    pub(crate) fn shown(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.shown]
    }

    /// The first `bytes` of what is shown were understood.
    pub(crate) fn discard(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
        self.shown -= bytes;
    }

    /// What came after the records that were shown and understood.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// Shows the next record too, and waits until it has come in full.
    pub(crate) async fn show_next<IO: AsyncRead + Unpin>(&mut self, io: &mut IO) -> Result<(), Failed> {
        loop {
            let needs = match self.next_record()? {
                Next::Shows(shown) => {
                    self.shown = shown;
                    return Ok(());
                }
                Next::Needs(needs) => needs,
            };
            let room = needs.next_multiple_of(READ) - self.bytes.len();
            if self.bytes.len() + room > OWN && self.large.is_none() {
                // Without shares there is nobody to have too much.
                self.large = LARGE_PLACES.place(()).await.ok();
            }
            let read = self.read(io, room).await?;
            if read == 0 {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it");
                return Err(Failed::Broken(error));
            }
        }
    }

    /// Bytes that are no record are shown as they are, for the TLS library to say what is wrong with them.
    fn next_record(&self) -> Result<Next, Failed> {
        let rest = &self.bytes[self.shown..];
        let Some(&[content, major, _, high, low]) = rest.first_chunk::<HEADER>() else {
            return Ok(Next::Needs(self.shown + HEADER));
        };
        let length = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if !(20..=23).contains(&content) || major != 3 || length > MAX_RECORD {
            return Ok(Next::Shows(self.bytes.len()));
        }
        let is_plain = content == HANDSHAKE;
        let most = if is_plain { HELLO } else { FLIGHT };
        // What is encrypted announces nothing that could be read here, and what goes on an earlier record has done so.
        let announced = if is_plain && self.shown == 0 { announced(&rest[HEADER..length.min(rest.len())]) } else { 0 };
        if announced > most || self.shown + length > most {
            return Err(Failed::TooLong { most, is_plain });
        }
        let end = self.shown + length;
        Ok(if end <= self.bytes.len() { Next::Shows(end) } else { Next::Needs(end) })
    }

    /// Reads once, up to `room` bytes. While nothing has come, no memory is held for it.
    async fn read<IO: AsyncRead + Unpin>(&mut self, io: &mut IO, room: usize) -> Result<usize, Failed> {
        let Self { bytes, large, .. } = self;
        let reading = future::poll_fn(|context| {
            let mut buffer = Buffer::holding(room.min(4 * READ));
            let most = room.min(buffer.len());
            let mut into = ReadBuf::new(&mut buffer[..most]);
            ready!(Pin::new(&mut *io).poll_read(context, &mut into))?;
            bytes.reserve_exact(into.filled().len());
            bytes.extend_from_slice(into.filled());
            Poll::Ready(Ok(into.filled().len()))
        });
        let Some(place) = large else { return reading.await.map_err(Failed::Broken) };
        tokio::select! {
            read = reading => read.map_err(Failed::Broken),
            () = place.gave_way() => Err(Failed::GaveWay { most: place.among() }),
        }
    }
}

/// How long a message will be that begins with `bytes`; 0 if too few of them are there to tell.
fn announced(bytes: &[u8]) -> usize {
    let Some(&[_, high, middle, low]) = bytes.first_chunk::<4>() else { return 0 };
    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)
}

/// Where the bytes that are shown end.
enum Next {
    /// With this record.
    Shows(usize),
    /// With one that is not there in full: so many bytes are needed.
    Needs(usize),
}

/// Why no more can be shown.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The peer's message is longer than any may be.
    TooLong {
        /// Bytes.
        most: usize,
        /// Nothing is encrypted yet, so the peer can be told.
        is_plain: bool,
    },
    /// Others needed the memory.
    GaveWay {
        /// So many handshakes may hold as much.
        most: usize,
    },
    /// The connection broke.
    Broken(io::Error),
}

impl From<Failed> for HandshakeError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::TooLong { most, .. } => {
                Self::Protocol(format!("a message of its handshake is longer than {} KiB", most >> 10))
            }
            Failed::GaveWay { most } => Self::GaveWay { most, own: OWN },
            Failed::Broken(error) => Self::Io(Arc::new(error)),
        }
    }
}
