//! Copies of requests, sent to other services. What they answer is read and thrown away, and nobody waits for them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::request::Parts;
use http_body::Body as _;
use leno_policy::WaypointTarget;
use leno_tunnel::timers;

use crate::balance::Seat;
use crate::body::upstream::{CopyEnd, RequestBody, copy};
use crate::phases::retry::{To, kind, send};
use crate::request::client::{Client, View};
use crate::request::head::{self, Asks};

/// How long a copy may take, with its answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends a copy of a request to each target. Returns the ends that want its body, if it has one.
pub(crate) fn begin(
    client: &Arc<Client>,
    view: &Arc<View>,
    (head, asks): (&Parts, &Asks),
    targets: Vec<WaypointTarget>,
    has_body: bool,
) -> Vec<CopyEnd> {
    let mut ends = Vec::new();
    for target in targets {
        let Ok(place) = client.gate.copies.clone().try_acquire_owned() else {
            tracing::debug!("a copy of a request is not sent: there are too many");
            continue;
        };
        let body = if has_body {
            let (end, copied) = copy();
            ends.push(end);
            RequestBody::Copied(copied)
        } else {
            RequestBody::Empty
        };
        let kind = kind(target.protocol(), head, asks);
        let (mut own, body) = Request::new(body).into_parts();
        own.method = head.method.clone();
        own.version = head.version;
        own.headers = head.headers.clone();
        head::aim(&mut own, asks, kind);
        let (client, view) = (client.clone(), view.clone());
        tokio::spawn(async move {
            let _place = place;
            let to = To {
                view: &view,
                target: &target,
                seat: &Seat::default(),
                again: false,
                repeatable: false,
                held: None,
            };
            let sending = async {
                let request = Request::from_parts(own, body);
                match send(&client, &to, request, kind, &mut |_| ()).await {
                    Ok((response, mut leased)) => {
                        let mut body = response.into_body();
                        while let Some(Ok(_)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
                        leased.answered();
                    }
                    Err(refusal) => tracing::debug!(reason = %refusal.reason, "a copy of a request was not answered"),
                }
            };
            let _ = timers::timeout(LIMIT, sending).await;
        });
    }
    ends
}
