//! Bodies on their way through.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use leno_tunnel::timers;
use tokio::time::{Instant, Sleep};

use crate::pool::Leased;
use crate::request::record::Exchange;
use crate::request::refusal::Flag;
use crate::request::slow_reader::Unread;

/// The body of a response.
pub(crate) enum Body {
    Empty,
    /// The waypoint's own words.
    Text(Option<Bytes>),
    /// A response's, with what is told at its end.
    Response(Box<Passing>),
}

/// A response's body on its way to the client.
pub(crate) struct Passing {
    incoming: Incoming,
    /// Given back at the body's end.
    leased: Option<Leased>,
    exchange: Option<Exchange>,
    /// When it must have ended, if a route says so.
    deadline: Option<Pin<Box<Sleep>>>,
    unread: Arc<Unread>,
    /// Whether bytes were handed over, and the next were not asked for.
    waits: bool,
}

/// Why a response's body breaks off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Upstream(#[from] hyper::Error),
    #[error("the response took longer than the timeout of its route")]
    Late,
}

impl Passing {
    pub(crate) fn new(
        incoming: Incoming,
        leased: Leased,
        exchange: Exchange,
        (deadline, unread): (Option<Instant>, Arc<Unread>),
    ) -> Self {
        // What has come with the head needs no timer.
        let deadline = deadline.filter(|_| !http_body::Body::is_end_stream(&incoming));
        let deadline = deadline.map(|deadline| Box::pin(timers::sleep_until(deadline)));
        Self { incoming, leased: Some(leased), exchange: Some(exchange), deadline, unread, waits: false }
    }

    fn asked_for(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.unread.asked_for();
        }
    }

    /// The endpoint has said all.
    fn end(&mut self) {
        if let Some(mut leased) = self.leased.take() {
            leased.answered();
        }
        if let Some(exchange) = self.exchange.take() {
            exchange.finished();
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.asked_for();
        if let Some(mut exchange) = self.exchange.take() {
            if !http_body::Body::is_end_stream(&self.incoming) {
                exchange.given_up("the client went away before it had the whole response");
            } else if let Some(leased) = &mut self.leased {
                leased.answered();
            }
            exchange.finished();
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Response(passing) => {
                passing.asked_for();
                let Poll::Ready(frame) = Pin::new(&mut passing.incoming).poll_frame(cx) else {
                    let Some(deadline) = &mut passing.deadline else { return Poll::Pending };
                    ready!(deadline.as_mut().poll(cx));
                    if let Some(exchange) = &mut passing.exchange {
                        exchange.broken(Flag::Timeout, BodyError::Late.to_string());
                    }
                    passing.leased = None;
                    passing.end();
                    return Poll::Ready(Some(Err(BodyError::Late)));
                };
                match &frame {
                    Some(Ok(frame)) => {
                        passing.waits = true;
                        passing.unread.handed_over();
                        if let Some(exchange) = &mut passing.exchange {
                            match (frame.data_ref(), frame.trailers_ref()) {
                                (Some(data), _) => exchange.sent(data),
                                (_, Some(trailers)) => exchange.trailers(trailers),
                                _ => {}
                            }
                        }
                    }
                    Some(Err(error)) => {
                        if let Some(exchange) = &mut passing.exchange {
                            exchange.broken(
                                Flag::UpstreamTermination,
                                format!("the endpoint's response broke off: {error}"),
                            );
                        }
                        passing.end();
                    }
                    None => passing.end(),
                }
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Text(None) => true,
            Self::Text(Some(text)) => text.is_empty(),
            Self::Response(passing) => passing.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty | Self::Text(None) => SizeHint::with_exact(0),
            Self::Text(Some(text)) => SizeHint::with_exact(text.len() as u64),
            Self::Response(passing) => passing.incoming.size_hint(),
        }
    }
}
