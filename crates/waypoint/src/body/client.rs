//! A client's body on its way in: as it comes, or held until somebody has seen as much of it as he wants.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The memory for all bodies that are held, in units of [`UNIT`] bytes.
pub(crate) type Room = Arc<Semaphore>;

/// Bytes that one permit of a [`Room`] stands for.
const UNIT: usize = 1024;

/// The part of a waypoint's memory that bodies may have that are held.
const PART: u64 = 8;

/// That room where a waypoint has no limit of its memory, bytes.
const ENOUGH: u64 = 128 << 20;

/// The first room that a body gets, bytes.
const LEAST: usize = 4096;

/// The room of a waypoint that may have so much memory, bytes; 0 stands for no limit.
pub(crate) fn room(max_memory: u64) -> Room {
    let bytes = if max_memory == 0 { ENOUGH } else { max_memory / PART };
    let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT;
    Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)))
}

/// A client's body.
pub(crate) struct ClientBody<B = Incoming> {
    incoming: B,
    /// What has been read and not passed on. On its own: few requests have any.
    held: Option<Box<Held>>,
    ended: bool,
}

#[derive(Default)]
struct Held {
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    room: Option<OwnedSemaphorePermit>,
}

/// Why a body can't be held.
#[derive(Debug)]
pub(crate) enum Unheld<E> {
    /// It broke off.
    Broken(E),
    /// There is no memory for it.
    NoRoom,
}

impl<B: Body<Data = Bytes> + Unpin> ClientBody<B> {
    pub(crate) fn new(incoming: B) -> Self {
        Self { incoming, held: None, ended: false }
    }

    /// Reads until more than `most` bytes are there, or the whole body; with `partial`, until there are `most` bytes. What is
    /// read is passed on later as if it came then.
    ///
    /// # Errors
    /// If that can't be. Then nothing of the body may be passed on.
    pub(crate) async fn hold(&mut self, most: usize, partial: bool, room: &Room) -> Result<(), Unheld<B::Error>> {
        let Self { incoming, held, ended } = self;
        let held = held.get_or_insert_default();
        loop {
            let length = held.data.len();
            if *ended || incoming.is_end_stream() || length > most || partial && length == most {
                return Ok(());
            }
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await;
            match frame.transpose().map_err(Unheld::Broken)?.map(Frame::into_data) {
                Some(Ok(data)) => held.take(&data, most, room).ok_or(Unheld::NoRoom)?,
                Some(Err(last)) => {
                    held.trailers = last.into_trailers().ok();
                    *ended = true;
                }
                None => *ended = true,
            }
        }
    }

    /// What is held of it.
    pub(crate) fn held(&self) -> &[u8] {
        self.held.as_ref().map_or(&[], |held| &held.data)
    }

    /// Whether all of it has been read.
    pub(crate) fn has_come(&self) -> bool {
        self.ended || self.incoming.is_end_stream()
    }

    /// The next part that is to be passed on.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(held) = &mut self.held {
            if let Some(frame) = held.next() {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.held = None;
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        self.ended = frame.is_none();
        Poll::Ready(frame)
    }

    /// Whether nothing is left to be passed on.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.held.as_ref().is_none_or(|held| held.data.is_empty() && held.trailers.is_none()) && self.has_come()
    }

    /// The length of what is left. Only what the client has said counts: of a body without a length, trailers may follow.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.incoming.size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + self.held().len() as u64),
            None => SizeHint::default(),
        }
    }
}

impl Held {
    /// Takes in what has come; `None` if there is no room for it.
    fn take(&mut self, data: &[u8], most: usize, room: &Room) -> Option<()> {
        let need = self.data.len() + data.len();
        let has = self.data.capacity();
        if need > has {
            let capacity = need.max((has * 2).max(LEAST).min(most));
            // Twice: whoever is asked about it is sent a copy.
            let units = |bytes: usize| (2 * bytes).div_ceil(UNIT);
            let more = u32::try_from(units(capacity) - units(has)).ok()?;
            let more = room.clone().try_acquire_many_owned(more).ok()?;
            match &mut self.room {
                Some(known) => known.merge(more),
                None => self.room = Some(more),
            }
            self.data.reserve_exact(capacity - self.data.len());
        }
        self.data.extend_from_slice(data);
        Some(())
    }

    /// In one part, however many there were: copies of the request have room for a few.
    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        let passed = Passed { data: std::mem::take(&mut self.data), _room: self.room.take() };
        Some(Frame::data(Bytes::from_owner(passed)))
    }
}

/// What was held and has been passed on. Its room is free when nobody has it any more.
struct Passed {
    data: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Passed {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
