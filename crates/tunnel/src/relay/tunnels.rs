//! From one tunnel into another, for a proxy between two others that passes bytes on unread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;

use super::{HalfCloseWatch, RelayOptions, TURN, after_end};
use crate::meter::Meter;
use crate::rarely::rarely;
use crate::{Error, RelayError, TunnelStream};

/// Relays between two tunnels. When `cancel` completes, both are reset.
///
/// The peer of one tunnel may send as much as the peer of the other accepts: received bytes wait in the stream's window,
/// and are sent from the buffer in which they were received.
///
/// # Errors
/// See [`RelayError`]. Both streams were then reset; if a peer has reset one, the other is reset with the same code.
pub async fn tunnel_to_tunnel<M: Meter>(
    mut first: TunnelStream,
    mut second: TunnelStream,
    meter: &M,
    options: &RelayOptions,
    cancel: impl Future<Output = ()>,
) -> Result<(), RelayError> {
    let mut forward = Direction::default();
    let mut backward = Direction::default();
    let mut watch = HalfCloseWatch::new(options);
    let cancel = pin!(cancel);
    let mut cancel = rarely(cancel);
    let result = poll_fn(|cx| {
        if Pin::new(&mut cancel).poll(cx).is_ready() {
            return Poll::Ready(Err(RelayError::Cancelled));
        }
        if let Poll::Ready(Err(error)) = forward.poll(cx, &mut first, &mut second, |bytes| meter.forward(bytes)) {
            return Poll::Ready(Err(error.into()));
        }
        if let Poll::Ready(Err(error)) = backward.poll(cx, &mut second, &mut first, |bytes| meter.backward(bytes)) {
            return Poll::Ready(Err(error.into()));
        }
        // Nothing else would notice a peer that resets the stream after its own end.
        let left = match (forward.done, backward.done) {
            (true, true) => return Poll::Ready(Ok(())),
            (false, false) => return Poll::Pending,
            (false, true) => second.poll_reset(cx),
            (true, false) => first.poll_reset(cx),
        };
        if let Poll::Ready(error) = left {
            return Poll::Ready(after_end(error));
        }
        watch.poll(cx, true, forward.moved + backward.moved)
    })
    .await;
    let code = match &result {
        Ok(()) => return Ok(()),
        Err(RelayError::Tunnel(Error::Reset { code, by_peer: true })) => *code,
        Err(RelayError::Tunnel(_)) => Reason::CONNECT_ERROR,
        Err(_) => Reason::CANCEL,
    };
    // The reset has no effect on the stream that has failed.
    first.reset(code);
    second.reset(code);
    result
}

#[derive(Default)]
struct Direction {
    /// Received bytes that the other tunnel has not taken yet.
    waiting: Bytes,
    /// Whether the source has ended.
    ended: bool,
    done: bool,
    moved: u64,
}

impl Direction {
    /// Ready once the direction has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TunnelStream,
        to: &mut TunnelStream,
        count: impl Fn(u64),
    ) -> Poll<Result<(), Error>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            if self.ended {
                ready!(to.poll_finished(cx))?;
                self.done = true;
                continue;
            }
            if self.waiting.is_empty() {
                match ready!(from.poll_chunk(cx))? {
                    Some(chunk) => self.waiting = chunk,
                    None => self.ended = true,
                }
                continue;
            }
            let Poll::Ready(room) = to.poll_reserve(cx, self.waiting.len()) else {
                return from.poll_cut(cx).map(Err);
            };
            let room = room?;
            to.send_chunk(self.waiting.split_to(room))?;
            from.release(room);
            self.moved += room as u64;
            count(room as u64);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
