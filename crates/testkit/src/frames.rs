//! HTTP/2 frame by frame (RFC 9113), for tests that send what a correct library refuses to send.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

/// Frame types (RFC 9113 §6).
pub mod kind {
    #![allow(missing_docs, reason = "named as in the RFC")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
/// The field `:method: GET`, compressed.
pub const GET: u8 = 0x82;
/// The field `:method: POST`, compressed.
pub const POST: u8 = 0x83;

const END_HEADERS: u8 = 0x4;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream. 0 is the connection.
    pub stream: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of a RST_STREAM or GOAWAY.
    pub fn error_code(&self) -> Option<u32> {
        let at = match self.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

/// A client that follows no rules by itself. It reads all the time, so that a peer that answers a flood is never
/// blocked.
pub struct Frames<IO> {
    write: Arc<Mutex<WriteHalf<IO>>>,
    out: Vec<u8>,
    frames: mpsc::UnboundedReceiver<Frame>,
    reader: AbortHandle,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static> Frames<IO> {
    /// Sends the preface and empty settings.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn start(io: IO) -> io::Result<Self> {
        Self::with(io, true).await
    }

    /// As [`Self::start`], but pings are not answered. A server that closes gracefully waits for the answer to one.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn start_without_pongs(io: IO) -> io::Result<Self> {
        Self::with(io, false).await
    }

    async fn with(io: IO, pongs: bool) -> io::Result<Self> {
        let (read, write) = split(io);
        let write = Arc::new(Mutex::new(write));
        let (found, frames) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read_frames(read, write.clone(), found, pongs)).abort_handle();
        let mut started = Self { write, out: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frames, reader };
        started.queue(kind::SETTINGS, 0, 0, &[]);
        started.flush().await?;
        Ok(started)
    }

    /// Queues any frame.
    pub fn queue(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        encode(&mut self.out, kind, flags, stream, payload);
    }

    /// Queues a CONNECT whose authority is any bytes.
    pub fn queue_connect(&mut self, stream: u32, authority: &[u8]) {
        self.queue(kind::HEADERS, END_HEADERS, stream, &connect_block(authority));
    }

    /// Queues the head of a request for `http://web/`. `method` is an entry of the static table (RFC 7541 appendix A), such as
    /// [`GET`] and [`POST`].
    pub fn queue_request(&mut self, stream: u32, method: u8, flags: u8) {
        let block = [method, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];
        self.queue(kind::HEADERS, flags | END_HEADERS, stream, &block);
    }

    /// Queues a reset (CANCEL).
    pub fn queue_reset(&mut self, stream: u32) {
        self.queue(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes());
    }

    /// Queues bytes of a stream.
    pub fn queue_data(&mut self, stream: u32, bytes: &[u8], end: bool) {
        self.queue(kind::DATA, if end { END_STREAM } else { 0 }, stream, bytes);
    }

    /// The number of queued bytes.
    pub fn queued(&self) -> usize {
        self.out.len()
    }

    /// Sends everything queued.
    ///
    /// # Errors
    /// If the peer has closed the connection.
    pub async fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        let mut write = self.write.lock().await;
        write.write_all(&out).await?;
        write.flush().await
    }

    /// The next frame that does not concern settings, pings or windows. `None` once the peer has closed.
    pub async fn next(&mut self) -> Option<Frame> {
        self.frames.recv().await
    }
}

impl<IO> Drop for Frames<IO> {
    fn drop(&mut self) {
        // This half keeps the transport open.
        self.reader.abort();
    }
}

fn encode(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Ends with the connection, in whatever way that ends.
async fn read_frames<IO: AsyncRead + AsyncWrite>(
    mut read: ReadHalf<IO>,
    write: Arc<Mutex<WriteHalf<IO>>>,
    found: mpsc::UnboundedSender<Frame>,
    pongs: bool,
) {
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if read.read_exact(&mut payload).await.is_err() {
            return;
        }
        match kind {
            kind::SETTINGS | kind::PING if flags & ACK == 0 && (pongs || kind == kind::SETTINGS) => {
                let mut answer = Vec::new();
                encode(&mut answer, kind, ACK, 0, if kind == kind::PING { &payload } else { &[] });
                let mut write = write.lock().await;
                // A peer that has closed needs no answer. Its frames up to then still count.
                let _ = write.write_all(&answer).await;
                let _ = write.flush().await;
            }
            kind::SETTINGS | kind::PING | kind::WINDOW_UPDATE => {}
            _ => {
                let frame = Frame { kind, flags, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload };
                if found.send(frame).is_err() {
                    return;
                }
            }
        }
    }
}

/// The header block of a CONNECT: literals without indexing, with the static table's names for
/// `:method` (2) and `:authority` (1) (RFC 7541 §6.2.2).
fn connect_block(authority: &[u8]) -> Vec<u8> {
    let mut block = vec![2];
    literal(&mut block, b"CONNECT");
    block.push(1);
    literal(&mut block, authority);
    block
}

/// A string that is not Huffman-coded (RFC 7541 §5.1, §5.2).
fn literal(block: &mut Vec<u8>, value: &[u8]) {
    let mut rest = value.len();
    if rest < 127 {
        block.push(rest as u8);
    } else {
        block.push(127);
        rest -= 127;
        while rest >= 128 {
            block.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        block.push(rest as u8);
    }
    block.extend_from_slice(value);
}
