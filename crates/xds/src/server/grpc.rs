//! A streaming gRPC call whose answers share their bytes. The library would copy each message for each stream before
//! sending it, and would keep the memory of the longest request as long as the stream lives.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header};
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep};
use tonic::{Code, Status};

use super::answer::Answer;

/// The gRPC prefix of a message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// A longer message, bytes, is received only when it has its turn.
const LONG: usize = 64 << 10;
/// How many long messages are received at a time by all streams of a service. When a control plane starts, all proxies
/// list what they hold of the mesh at once, megabytes each.
const LONG_AT_ONCE: usize = 16;
/// Time for a long message. After that, its sender no longer keeps others waiting.
const LONG_TAKES: Duration = Duration::from_secs(2);

/// Turns for receiving long messages.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    free: Arc<Semaphore>,
    /// Bytes of long messages that have come.
    heard: watch::Sender<u64>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(LONG_AT_ONCE)), heard: watch::Sender::default() }
    }
}

impl Turns {
    /// Bytes of long messages, counted up as these come.
    pub(super) fn heard(&self) -> watch::Receiver<u64> {
        self.heard.subscribe()
    }
}

/// The state of a long message's turn.
enum Turn {
    Awaits(BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>),
    Has {
        _permit: OwnedSemaphorePermit,
        ends: Pin<Box<Sleep>>,
    },
    /// It took too long, and goes on without a turn.
    Had,
}

/// A stream's messages from the client.
pub(super) struct Messages<B> {
    body: B,
    /// Received chunks of a message that is not complete yet.
    chunks: VecDeque<Bytes>,
    have: usize,
    most: usize,
    turns: Turns,
    turn: Option<Turn>,
}

impl<B> Messages<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// Messages may have up to `most` bytes.
    pub(super) fn new(body: B, most: usize, turns: Turns) -> Self {
        Self { body, chunks: VecDeque::new(), have: 0, most, turns, turn: None }
    }

    /// The next message; `None` when the client has sent all. Cancel safe.
    ///
    /// # Errors
    /// If what comes is not a gRPC message, or is too long.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.message()? {
                return Ok(Some(message));
            }
            // What is not taken stays with the client, except for one window.
            let next = poll_fn(|cx| {
                ready!(self.poll_turn(cx));
                Pin::new(&mut self.body).poll_frame(cx)
            });
            match next.await {
                Some(Ok(frame)) => {
                    if let Ok(chunk) = frame.into_data() {
                        self.have += chunk.len();
                        self.chunks.push_back(chunk);
                    }
                }
                Some(Err(error)) => return Err(Status::from_error(Box::new(error))),
                None if self.have == 0 => return Ok(None),
                None => return Err(Status::internal("the client ended the stream within a message")),
            }
        }
    }

    fn message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(head) = self.peek() else { return Ok(None) };
        let [compressed, length @ ..] = head;
        if compressed != 0 {
            return Err(Status::unimplemented("a compressed message, and no encoding was agreed on"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.most {
            let most = self.most;
            return Err(Status::out_of_range(format!("a message of {length} bytes; the limit is {most} bytes")));
        }
        if self.have < HEAD + length {
            if length > LONG && self.turn.is_none() {
                self.turn = Some(Turn::Awaits(Box::pin(self.turns.free.clone().acquire_owned())));
            }
            return Ok(None);
        }
        self.turn = None;
        if length > LONG {
            self.turns.heard.send_modify(|bytes| *bytes += length as u64);
        }
        self.take(HEAD);
        Ok(Some(self.take(length)))
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.turn {
                Some(Turn::Awaits(turn)) => {
                    // The semaphore is never closed.
                    let permit = ready!(turn.as_mut().poll(cx)).ok();
                    let has = |permit| Turn::Has { _permit: permit, ends: Box::pin(sleep(LONG_TAKES)) };
                    self.turn = Some(permit.map_or(Turn::Had, has));
                }
                Some(Turn::Has { ends, .. }) => {
                    if ends.as_mut().poll(cx).is_ready() {
                        self.turn = Some(Turn::Had);
                    }
                    return Poll::Ready(());
                }
                Some(Turn::Had) | None => return Poll::Ready(()),
            }
        }
    }

    fn peek(&self) -> Option<[u8; HEAD]> {
        if self.have < HEAD {
            return None;
        }
        let mut head = [0; HEAD];
        let bytes = self.chunks.iter().flat_map(|chunk| chunk.iter());
        head.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Some(head)
    }

    /// Takes the next `length` bytes, all of which have arrived. They are not copied if they came in one chunk.
    fn take(&mut self, length: usize) -> Bytes {
        self.have -= length;
        let mut gathered = BytesMut::new();
        while gathered.len() < length
            && let Some(mut chunk) = self.chunks.pop_front()
        {
            let part = chunk.split_to(chunk.len().min(length - gathered.len()));
            if chunk.has_remaining() {
                self.chunks.push_front(chunk);
            }
            if part.len() == length {
                return part;
            }
            if gathered.is_empty() {
                gathered.reserve(length);
            }
            gathered.extend_from_slice(&part);
        }
        gathered.freeze()
    }
}

/// Where a conversation puts its next answer.
#[derive(Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<Option<Answer>>>);

impl Outbox {
    /// Returns when everything was sent, as far as the client's window allows.
    pub(super) async fn sent(&self) {
        // The body takes the answer and polls the conversation afterwards, so no waker is needed.
        poll_fn(|_| if self.0.lock().is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Puts an answer. The previous one must have been sent.
    pub(super) fn put(&self, answer: Answer) {
        *self.0.lock() = Some(answer);
    }

    fn take(&self) -> Option<Answer> {
        self.0.lock().take()
    }
}

/// The body of a stream's response: what a conversation puts into its outbox, until it ends.
pub(super) struct Spoken<F> {
    conversation: Option<Pin<Box<F>>>,
    outbox: Outbox,
    current: Option<Answer>,
    trailers: Option<HeaderMap>,
}

impl<F: Future<Output = Result<(), Status>>> Spoken<F> {
    pub(super) fn new(conversation: F, outbox: Outbox) -> Self {
        Self { conversation: Some(Box::pin(conversation)), outbox, current: None, trailers: None }
    }
}

impl<F: Future<Output = Result<(), Status>>> Body for Spoken<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(current) = &mut this.current {
                if let Some(piece) = current.next_piece() {
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                this.current = None;
            }
            let Some(conversation) = &mut this.conversation else {
                return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            let ended = conversation.as_mut().poll(cx);
            this.current = this.outbox.take();
            match ended {
                Poll::Ready(result) => {
                    let status = result.err().unwrap_or_else(|| Status::new(Code::Ok, ""));
                    let mut trailers = HeaderMap::new();
                    // Fails if the text does not fit into a header. Then the code alone must do.
                    if status.add_header(&mut trailers).is_err() {
                        trailers.insert("grpc-status", HeaderValue::from(status.code() as i32));
                    }
                    this.trailers = Some(trailers);
                    this.conversation = None;
                }
                Poll::Pending if this.current.is_none() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

/// The response whose body is a conversation.
pub(super) fn response<F>(body: Spoken<F>) -> http::Response<tonic::body::Body>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let mut response = http::Response::new(tonic::body::Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Refuses requests that use something not supported here.
///
/// # Errors
/// If the messages are compressed.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != "identity" => {
            Err(Status::unimplemented(format!("messages compressed as {encoding:?} are not understood here")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
