//! The received bytes of a handshake that the TLS library has not processed yet. A peer that has proved nothing decides
//! how many there are. So they are bounded: for each handshake, and for the whole process.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Poll, ready};
use std::{future, io};

use tokio::io::{AsyncRead, ReadBuf};

use crate::HandshakeError;
use crate::buffer::Buffer;
use crate::record::{HEADER, MAX_RECORD};
use crate::unproven::{Unproven, UnprovenPlace};

/// Bytes to read at a time, unless a record needs more. What a peer usually sends at once fits.
const READ: usize = 4 << 10;

/// Bytes that each handshake may hold, whatever others do. Usual messages are shorter: a ClientHello with a post-quantum
/// key has 1.5 KiB, a chain of three RSA certificates 5 KiB.
const OWN: usize = 8 << 10;

/// Most accepted bytes that the TLS library has not processed. It refuses a message of more than 64 KiB; the headers of
/// the message's records come on top.
const MOST: usize = 68 << 10;

/// Each record counts for at least so many bytes, which is about what the shortest encrypted one has. The library walks
/// over all records of a message again for each that is new: a ClientHello in pieces of one byte would keep it busy.
const LEAST: usize = 24;

/// How many handshakes of the process at a time may hold more than [`OWN`]: together 18 MiB at most.
const LARGE: usize = 256;

static LARGE_PLACES: LazyLock<Arc<Unproven<()>>> = LazyLock::new(|| Unproven::unshared(LARGE));

/// Type of a record that holds a handshake message in the clear.
const HANDSHAKE: u8 = 22;

/// Received bytes of a handshake. The TLS library is shown them record by record, because what follows the handshake's
/// last record belongs to this crate's record layer, under the keys of this handshake.
#[derive(Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    shown: usize,
    /// What the shown records count for.
    counted: usize,
    large: Option<UnprovenPlace<()>>,
}

impl Gathered {
    /// The records that the TLS library may see. It changes them in place.
    pub(crate) fn shown(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.shown]
    }

    /// The TLS library has processed the first `bytes` of what it was shown.
    pub(crate) fn discard(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
        self.shown -= bytes;
        // While it joins the pieces of a message, the library discards a part of them.
        if self.shown == 0 {
            self.counted = 0;
        }
    }

    /// The bytes that the TLS library has not processed.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// Waits until the next record has come in full, and shows it, too.
    pub(crate) async fn show_next<IO: AsyncRead + Unpin>(&mut self, io: &mut IO) -> Result<(), Failed> {
        loop {
            let needs = match self.next_record()? {
                Next::Shows(shown) => {
                    self.counted += (shown - self.shown).max(LEAST);
                    self.shown = shown;
                    return Ok(());
                }
                Next::Needs(needs) => needs,
            };
            let room = needs.next_multiple_of(READ) - self.bytes.len();
            if self.bytes.len() + room > OWN && self.large.is_none() {
                // This can't fail: without shares, no source can have too many places.
                self.large = LARGE_PLACES.place(()).await.ok();
            }
            let read = self.read(io, room).await?;
            if read == 0 {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it");
                return Err(Failed::Broken(error));
            }
        }
    }

    /// Where the next record ends. Bytes that are not a TLS record are shown as they are, so that the TLS library says
    /// what is wrong with them.
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
        // The length of an encrypted message can't be read here. A record that continues a message carries no length.
        let announced = if is_plain && self.shown == 0 { announced(&rest[HEADER..length.min(rest.len())]) } else { 0 };
        if announced > MOST || self.counted + length.max(LEAST) > MOST {
            return Err(Failed::TooLong { is_plain });
        }
        let end = self.shown + length;
        Ok(if end <= self.bytes.len() { Next::Shows(end) } else { Next::Needs(end) })
    }

    /// Reads once, up to `room` bytes. It holds no memory while it waits.
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

/// Length of the message that begins with `bytes`; 0 if there are too few bytes to tell.
fn announced(bytes: &[u8]) -> usize {
    let Some(&[_, high, middle, low]) = bytes.first_chunk::<4>() else { return 0 };
    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)
}

/// The end of the next record.
enum Next {
    /// The record has come in full and ends here.
    Shows(usize),
    /// The record is not there in full. This many bytes are needed.
    Needs(usize),
}

/// Why no more can be shown.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The peer's message is longer than any may be.
    TooLong {
        /// Nothing is encrypted yet, so the peer can be told.
        is_plain: bool,
    },
    /// Other handshakes needed the memory.
    GaveWay {
        /// How many handshakes may hold as much.
        most: usize,
    },
    /// The connection broke.
    Broken(io::Error),
}

impl From<Failed> for HandshakeError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::TooLong { .. } => {
                Self::Protocol(format!("a message of its handshake is longer than {} KiB", MOST >> 10))
            }
            Failed::GaveWay { most } => Self::GaveWay { most, own: OWN },
            Failed::Broken(error) => Self::Io(Arc::new(error)),
        }
    }
}
