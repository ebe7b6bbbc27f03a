//! Writing to the transport, and keeping what it has no room for.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::Carrier;

impl Carrier {
    /// Sends a complete frame, before anything that is given later.
    pub(super) fn write(&mut self, frame: &[u8]) {
        if self.outgoing.uninterruptible {
            self.outgoing.held_back.extend_from_slice(frame);
        } else {
            self.append(frame);
        }
    }

    /// Sends bytes after those given before.
    pub(super) fn append(&mut self, frame: &[u8]) {
        let taken = if self.outgoing.stuck.is_empty() { self.offer(&mut [IoSlice::new(frame)]) } else { 0 };
        if taken < frame.len() {
            self.outgoing.stuck.push_back(Bytes::copy_from_slice(&frame[taken..]));
        }
        self.ask_for_flush();
    }

    /// Offers bytes to the transport and returns how many it took. After an error, it reports all as taken: nothing
    /// will be sent any more.
    pub(super) fn offer(&mut self, mut slices: &mut [IoSlice<'_>]) -> usize {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.leaving {
            // The task that closes the transport waits for this, and would no longer be woken.
            return total;
        }
        let Some(io) = &mut self.io else { return total };
        let mut cx = Context::from_waker(self.driver.as_ref().unwrap_or(Waker::noop()));
        let mut taken = 0;
        while taken < total {
            match Pin::new(&mut *io).poll_write_vectored(&mut cx, slices) {
                Poll::Pending => break,
                Poll::Ready(Ok(length)) if length > 0 => {
                    taken += length;
                    IoSlice::advance_slices(&mut slices, length);
                }
                Poll::Ready(failed) => {
                    let error = failed.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                    self.outgoing.error.get_or_insert(error);
                    self.wake_driver();
                    return total;
                }
            }
        }
        taken
    }

    /// Sends everything that was gathered. Ready when the transport has it.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.outgoing.error.take() {
            return Poll::Ready(Err(error));
        }
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
        if !self.outgoing.stuck.is_empty() {
            while let Some(first) = self.outgoing.stuck.front_mut() {
                let length = ready!(Pin::new(&mut *io).poll_write(cx, first))?;
                if length == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                first.advance(length);
                if first.is_empty() {
                    self.outgoing.stuck.pop_front();
                }
            }
            self.outgoing.wake_library();
            self.tell_what_is_owed();
            self.let_next();
        }
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
        if self.outgoing.unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.outgoing.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what was gathered, outside the task's turns.
    pub(super) fn flush_now(&mut self) {
        self.outgoing.unflushed = true;
        let Some(driver) = self.driver.clone() else { return };
        if let Poll::Ready(Err(error)) = self.poll_flush(&mut Context::from_waker(&driver)) {
            self.outgoing.error = Some(error);
            driver.wake();
        }
    }
}
