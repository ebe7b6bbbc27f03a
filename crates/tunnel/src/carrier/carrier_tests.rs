//! Shared by the carrier's tests: peers that send arbitrary frames.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;
use crate::frame::{Head, Piece, Splitter, word};
use crate::server::{InboundConnect, Served, serve};
use crate::test_support::request;
use crate::window::Held;
use crate::{OpenError, Pool, TunnelStream, WindowBudget};

#[path = "contract_tests.rs"]
mod contract;
#[path = "floods_tests.rs"]
mod floods;
#[path = "leaks_tests.rs"]
mod leaks;
#[path = "library_tests.rs"]
mod library;
#[path = "receiving_tests.rs"]
mod receiving;
#[path = "sending_tests.rs"]
mod sending;
#[path = "turns_tests.rs"]
mod turns;
#[path = "whole_tests.rs"]
mod whole;

use crate::frame::{ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// HPACK of a CONNECT to `x:1` (RFC 7541: literals with names of the static table).
const CONNECT: &[u8] = b"\x02\x07CONNECT\x01\x03x:1";
/// HPACK of `:status: 200`.
const OK: &[u8] = &[0x88];

const STREAM: usize = 64 << 10;
const CONNECTION: usize = 128 << 10;
const FRAME: usize = 16 << 10;

/// Paused time moves on only when no task can run, so this passes only if the test hangs.
const HANGS: Duration = Duration::from_secs(5);

/// Settings with small windows.
fn small() -> Settings {
    Settings {
        stream_window: STREAM as u32,
        connection_window: CONNECTION as u32,
        max_frame_size: FRAME as u32,
        window_budget: WindowBudget::new(0),
        ..Settings::default()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Head { length: payload.len() as u32, kind, flags, stream }.bytes().to_vec();
    frame.extend_from_slice(payload);
    frame
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat()
}

/// One end of a transport, which sends whatever a test wants.
struct Raw {
    io: DuplexStream,
    /// The other end's windows: of a new stream, of each stream, and (stream 0) of the connection.
    initial: i64,
    windows: HashMap<u32, i64>,
}

impl Raw {
    fn new(io: DuplexStream) -> Self {
        Self { io, initial: 65_535, windows: HashMap::from([(0, 65_535)]) }
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.io.write_all(&frame(kind, flags, stream, payload)).await.unwrap();
    }

    async fn window_update(&mut self, stream: u32, increment: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes()).await;
    }

    fn window(&mut self, stream: u32) -> &mut i64 {
        let initial = self.initial;
        self.windows.entry(stream).or_insert(initial)
    }

    /// Sends DATA as soon as the windows of all of `of` have room for it.
    async fn data_within(&mut self, of: &[u32], stream: u32, flags: u8, payload: &[u8]) {
        for window in of {
            while *self.window(*window) < payload.len() as i64 {
                self.frame().await.expect("the connection is open");
            }
        }
        for window in of {
            *self.window(*window) -= payload.len() as i64;
        }
        self.send(DATA, flags, stream, payload).await;
    }

    /// The next frame; `None` when the other end has closed.
    async fn frame(&mut self) -> Option<(Head, Vec<u8>)> {
        let mut bytes = [0; 9];
        timeout(12 * HANGS, self.io.read_exact(&mut bytes)).await.expect("the other end says nothing").ok()?;
        let Some(Piece::Head(head)) = Splitter::new(0).next(&bytes, &mut 0) else { unreachable!() };
        let mut payload = vec![0; head.length as usize];
        self.io.read_exact(&mut payload).await.ok()?;
        match head.kind {
            WINDOW_UPDATE => *self.window(head.stream) += i64::from(word(&payload, 0)),
            SETTINGS => {
                for setting in payload.chunks(6).filter(|setting| setting[1] == 4) {
                    self.initial = i64::from(word(setting, 2));
                }
            }
            _ => {}
        }
        Some((head, payload))
    }

    /// The next frame of this kind.
    async fn until(&mut self, kind: u8) -> (Head, Vec<u8>) {
        loop {
            let found = self.frame().await.unwrap_or_else(|| panic!("closed without a frame {kind}"));
            if found.0.kind == kind {
                return found;
            }
        }
    }

    /// Waits until the whole window of an opened stream was announced.
    async fn window_told(&mut self, stream: u32) {
        while self.until(WINDOW_UPDATE).await.0.stream != stream {}
    }

    async fn goaway(&mut self) -> u32 {
        word(&self.until(GOAWAY).await.1, 4)
    }

    /// A stream's data until its end, or until nothing more comes; and whether it has ended.
    async fn all_data(&mut self, stream: u32) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        while let Ok(Some((head, payload))) = timeout(HANGS, self.frame()).await {
            if head.kind == DATA && head.stream == stream {
                all.extend(payload);
                if head.has(END_STREAM) {
                    return (all, true);
                }
            }
        }
        (all, false)
    }
}

/// A client that sends arbitrary frames to a server of this crate.
struct Service {
    raw: Raw,
    server: JoinHandle<Served>,
    requests: mpsc::UnboundedReceiver<InboundConnect>,
    drain: oneshot::Sender<Instant>,
}

impl Service {
    async fn start(settings: Settings, client: &[u8]) -> Self {
        let mut service = Self::unheard(settings, client).await;
        service.raw.send(SETTINGS, ACK, 0, &[]).await;
        service
    }

    /// As `start`, but the client has not acknowledged the server's settings.
    async fn unheard(settings: Settings, client: &[u8]) -> Self {
        let (near, far) = duplex(1 << 20);
        let (seen, requests) = mpsc::unbounded_channel();
        let (drain, drained) = oneshot::channel();
        let server = tokio::spawn(async move {
            let drain = async { drained.await.unwrap() };
            serve(far, &settings, drain, |inbound| seen.send(inbound).unwrap_or_default()).await
        });
        let mut raw = Raw::new(near);
        raw.io.write_all(PREFACE).await.unwrap();
        raw.send(SETTINGS, 0, 0, client).await;
        raw.until(SETTINGS).await;
        Self { raw, server, requests, drain }
    }

    async fn open(&mut self, id: u32) -> TunnelStream {
        self.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        let stream = self.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap();
        self.raw.window_told(id).await;
        stream
    }

    /// Expects the server to report this error and to close.
    async fn ends_with(mut self, code: u32) {
        assert_eq!(self.raw.goaway().await, code);
        let served = self.server.await.unwrap();
        assert!(served.end.is_err(), "{served:?}");
    }
}

/// A server that sends arbitrary frames to a client of this crate.
struct Remote {
    raw: Raw,
    near: Option<DuplexStream>,
    pool: Arc<Pool<(), ()>>,
    opened: u32,
}

impl Remote {
    fn new(settings: Settings) -> Self {
        let (near, far) = duplex(1 << 20);
        Self { raw: Raw::new(far), near: Some(near), pool: Arc::new(Pool::new(settings)), opened: 0 }
    }

    /// Makes the client open a stream. Returns its number and the pending answer. `server` is the server's settings.
    async fn ask(&mut self, server: &[u8]) -> (u32, JoinHandle<Result<TunnelStream, OpenError<()>>>) {
        let (pool, mut near, first) = (self.pool.clone(), self.near.take(), self.opened == 0);
        let asked = tokio::spawn(async move {
            pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.map(|(stream, _)| stream)
        });
        if first {
            self.raw.io.read_exact(&mut [0; 24]).await.unwrap();
            self.raw.send(SETTINGS, 0, 0, server).await;
        }
        self.opened += 1;
        (self.raw.until(HEADERS).await.0.stream, asked)
    }

    async fn open_with(&mut self, server: &[u8]) -> TunnelStream {
        let (id, asked) = self.ask(server).await;
        self.raw.send(HEADERS, END_HEADERS, id, OK).await;
        asked.await.unwrap().unwrap()
    }

    async fn open(&mut self) -> TunnelStream {
        self.open_with(&[]).await
    }
}

/// A carrier without library and task.
struct Bench {
    handle: Handle,
    library: LibraryIo,
    raw: Raw,
}

impl Bench {
    /// `room` is how many bytes the transport takes.
    fn new(role: Role, settings: &Settings, room: usize) -> Self {
        let (near, far) = duplex(room);
        let ledger = crate::window::Window::new(settings.connection_window, WindowBudget::new(0)).ledger().clone();
        let handle = Handle::new(Box::new(near), role, settings, ledger);
        let library = handle.library_io();
        handle.has_task();
        Self { handle, library, raw: Raw::new(far) }
    }

    /// A client's carrier, whose library has sent the preface and has opened these streams.
    async fn client(streams: &[u32], room: usize) -> Self {
        let mut bench = Self::new(Role::Client, &small(), room);
        bench.library.write_all(PREFACE).await.unwrap();
        bench.raw.io.read_exact(&mut [0; 24]).await.unwrap();
        for id in streams {
            bench.library.write_all(&frame(HEADERS, END_HEADERS, *id, CONNECT)).await.unwrap();
            bench.raw.window_told(*id).await;
        }
        bench
    }

    /// One turn of its task. Frames for the library are discarded.
    fn turn(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(self.handle.begin_turn(&mut cx).is_ok());
        let mut bytes = [0; 4096];
        let mut room = ReadBuf::new(&mut bytes);
        while Pin::new(&mut self.library).poll_read(&mut cx, &mut room).is_ready() && !room.filled().is_empty() {
            room.clear();
        }
        self.handle.end_turn(&mut cx).unwrap();
    }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// A buffer to send, and its length.
fn buffer(bytes: &[u8]) -> leno_tls::buffer::Buffer {
    let mut buffer = leno_tls::buffer::Buffer::holding(bytes.len());
    buffer[..bytes.len()].copy_from_slice(bytes);
    buffer
}

/// The number of streams that a connection knows, the bytes that it holds, and its receive window.
fn kept(handle: &Handle) -> (usize, usize, u32) {
    let carrier = handle.0.lock();
    (carrier.streams.len(), Held::new(carrier.ledger.clone()).all().1, carrier.incoming.credit.whole())
}

/// Waits until a connection knows no stream any more, holds nothing, and has its window back.
async fn nothing_kept(handle: &Handle) {
    let nothing = async {
        while kept(handle) != (0, 0, CONNECTION as u32) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(HANGS, nothing).await.unwrap_or_else(|_| panic!("kept: {:?}", kept(handle)));
}

/// All that a stream receives until it ends, or its failure.
async fn read_all(stream: &mut TunnelStream) -> Result<Vec<u8>, Error> {
    let mut all = BytesMut::new();
    while let Some(chunk) = stream.chunk().await? {
        all.extend_from_slice(&chunk);
        stream.release(chunk.len());
    }
    Ok(all.to_vec())
}
