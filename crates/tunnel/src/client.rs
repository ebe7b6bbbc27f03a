//! Client side of one HBONE connection: the CONNECT request, and the task that drives it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};
use std::task::Poll;

use http::{HeaderMap, Method, Request, StatusCode, Uri};

use crate::connection::Permit;
use crate::early::FirstBytes;
use crate::timers::sleep;
use crate::{Error, OpenError, Settings, TunnelStream};

mod task;

pub(crate) use task::{Registry, start};

/// A request for a tunnel.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// `host:port` to connect to; IPv6 in brackets.
    pub authority: String,
    /// Headers, such as `baggage`, `forwarded` and `traceparent`.
    pub headers: HeaderMap,
}

/// The peer's answer, with status 200.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// Headers, such as the `baggage` that describes the destination.
    pub headers: HeaderMap,
}

impl Permit {
    /// Sends the request, with the program's first bytes, and waits for the answer.
    pub(crate) async fn connect<E>(
        self,
        request: &ConnectRequest,
        mut first: Option<&mut FirstBytes<'_>>,
        settings: &Settings,
    ) -> Result<(TunnelStream, ResponseHead), OpenError<E>> {
        let uri: Uri =
            request.authority.parse().map_err(|_| Error::InvalidAuthority(request.authority.as_str().into()))?;
        if uri.scheme().is_some() || uri.port().is_none() {
            return Err(Error::InvalidAuthority(request.authority.as_str().into()).into());
        }
        let mut head = Request::new(());
        *head.method_mut() = Method::CONNECT;
        *head.uri_mut() = uri;
        *head.headers_mut() = request.headers.clone();
        let (mut answer, send) = self.connection.send.clone().send_request(head, false).map_err(Error::from)?;
        let lane = self.connection.carrier.attach(send.stream_id().into());
        let early = self.connection.takes_early_bytes();
        // The kernel would take minutes to find out that an idle connection is dead.
        let mut probing = (self.connection.settled.load(Acquire) && !self.connection.is_lively()).then(|| {
            self.connection.carrier.probe();
            (self.connection.carrier.received_so_far(), Box::pin(sleep(settings.probe_timeout)))
        });
        if let Some(first) = &mut first {
            first.begin();
        }
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = Pin::new(&mut answer).poll(cx) {
                return Poll::Ready(answer.map_err(|error| OpenError::Tunnel(error.into())));
            }
            if early
                && let Some(first) = &mut first
                && let Err(error) = first.poll_send(cx, &lane)
            {
                return Poll::Ready(Err(OpenError::Program(Arc::new(error))));
            }
            if let Some((before, timer)) = &mut probing
                && timer.as_mut().poll(cx).is_ready()
            {
                if self.connection.carrier.received_so_far() == *before {
                    return Poll::Ready(Err(Error::Unheard.into()));
                }
                probing = None;
            }
            Poll::Pending
        })
        .await;
        let refused = answer.as_ref().is_ok_and(|head| head.status() != StatusCode::OK);
        if refused {
            self.connection.has_refused.store(true, Relaxed);
        }
        if let Some(first) = first {
            match &answer {
                Ok(_) if !refused => first.accepted(&lane),
                Ok(_) => first.refused(),
                Err(OpenError::Tunnel(error)) if error.is_unprocessed() => first.refused(),
                Err(_) => {}
            }
        }
        let (head, recv) = answer?.into_parts();
        if head.status != StatusCode::OK {
            return Err(OpenError::Refused { status: head.status, headers: Box::new(head.headers) });
        }
        let stream = TunnelStream::new(send, recv, lane, Some(self));
        Ok((stream, ResponseHead { status: head.status, headers: head.headers }))
    }
}
