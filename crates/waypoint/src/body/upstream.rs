//! Bodies of requests on their way to endpoints, and copies of them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::body::client::ClientBody;
use crate::body::grpc_messages::{Flow, Messages};

/// The body of a request on its way to an endpoint.
pub(crate) enum RequestBody {
    Empty,
    /// The client's.
    Passing(Box<Passing>),
    /// A copy of it.
    Copied(Copied),
    /// The waypoint's own, whole. On its own: few have one.
    Whole(Option<Box<Bytes>>),
}

/// Why a request's body breaks off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestBodyError {
    #[error(transparent)]
    Client(#[from] hyper::Error),
    #[error("the copy broke off: its endpoint reads too slowly, or the request itself broke off")]
    Lost,
}

/// Parts of a body that a copy may be behind. Then it is given up, lest the request wait for its copy.
const BEHIND: usize = 64;

/// A client's body, counted.
pub(crate) struct Passing {
    incoming: ClientBody,
    flow: Arc<Flow>,
    /// Of a gRPC request.
    messages: Option<Messages>,
    copies: Vec<CopyEnd>,
    broken: bool,
}

/// The end of a copy that is written to.
pub(crate) struct CopyEnd {
    parts: mpsc::Sender<Frame<Bytes>>,
    complete: Arc<AtomicBool>,
}

/// A copy of a body that is being read.
pub(crate) struct Copied {
    parts: mpsc::Receiver<Frame<Bytes>>,
    complete: Arc<AtomicBool>,
}

/// Both ends of a copy.
pub(crate) fn copy() -> (CopyEnd, Copied) {
    let (sender, receiver) = mpsc::channel(BEHIND);
    let complete = Arc::<AtomicBool>::default();
    (CopyEnd { parts: sender, complete: complete.clone() }, Copied { parts: receiver, complete })
}

fn same(frame: &Frame<Bytes>) -> Option<Frame<Bytes>> {
    let data = frame.data_ref().map(|data| Frame::data(data.clone()));
    data.or_else(|| frame.trailers_ref().map(|trailers| Frame::trailers(trailers.clone())))
}

impl Passing {
    pub(crate) fn new(
        incoming: ClientBody,
        (flow, messages): (Arc<Flow>, Option<Messages>),
        copies: Vec<CopyEnd>,
    ) -> Self {
        Self { incoming, flow, messages, copies, broken: false }
    }

    fn note(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.flow.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            if let Some(messages) = &mut self.messages {
                self.flow.messages.fetch_add(messages.begun(data), Ordering::Relaxed);
            }
        }
        self.copies.retain(|copy| same(frame).is_none_or(|frame| copy.parts.try_send(frame).is_ok()));
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // A copy that looked complete and is not would be another request.
        if !self.broken && self.incoming.is_end_stream() {
            for copy in &self.copies {
                copy.complete.store(true, Ordering::Release);
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Passing(passing) => {
                let frame = ready!(passing.incoming.poll_frame(cx));
                match &frame {
                    Some(Ok(frame)) => passing.note(frame),
                    Some(Err(_)) => passing.broken = true,
                    None => {}
                }
                Poll::Ready(frame.map(|frame| frame.map_err(RequestBodyError::from)))
            }
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(*bytes)))),
            Self::Copied(copied) => match ready!(copied.parts.poll_recv(cx)) {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None if copied.complete.load(Ordering::Acquire) => Poll::Ready(None),
                None => Poll::Ready(Some(Err(RequestBodyError::Lost))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Passing(passing) => passing.incoming.is_end_stream(),
            Self::Copied(_) => false,
            Self::Whole(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Passing(passing) => passing.incoming.size_hint(),
            Self::Copied(_) => SizeHint::default(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
