//! Asks an external authoriser: one gRPC call or one HTTP request, in the mesh as any other request of the waypoint, within the
//! time and the places that there are for it.

use std::net::Ipv4Addr;
use std::pin::Pin;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use leno_model::AppProtocol;
use leno_model::http::{Authorizer, AuthorizerAnswer};
use leno_policy::WaypointTarget;
use leno_policy::http::authorizer::{DEPTH, service};
use leno_proto::check::{CHECK_PATH, LONGEST_ANSWER, check_answer};
use leno_tunnel::timers;

use super::over_http;
use crate::balance::Seat;
use crate::body::upstream::RequestBody;
use crate::phases::retry::{To, send_by};
use crate::pool::Kind;
use crate::request::client::{Client, View};
use crate::request::head::Asks;
use crate::state::ext_authz_slots::PLACES;
use crate::upstream;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// What [`DEPTH`] comes to only in a circle of authorisers, each asked about the questions to the next.
const DEEPEST: u32 = 4;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What an authoriser is asked.
pub(crate) enum Question {
    /// The message of its gRPC call.
    Grpc(Vec<u8>),
    /// The request, which is not aimed at it yet.
    Http(Box<(Request<RequestBody>, Asks)>),
}

/// Why there is no answer.
pub(crate) enum NoAnswer {
    /// In words.
    Because(String),
    /// The question came back, or whoever asked says so: a client may send the header itself. So `failOpen` lets nothing pass here,
    /// or a client would choose what its requests are not asked about.
    Circle,
}

impl From<String> for NoAnswer {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// How deep a question about a request with these headers is; `None` if that would be a circle.
pub(crate) fn depth(request: &HeaderMap) -> Option<u32> {
    let so_far = request.get(&DEPTH).map_or(Some(0), |value| value.to_str().ok()?.parse().ok());
    so_far.filter(|so_far| *so_far < DEEPEST).map(|so_far: u32| so_far + 1)
}

/// The answer to a question.
///
/// # Errors
/// If there is none, with the reason.
pub(crate) async fn check(
    client: &Client,
    view: &View,
    authorizer: &Authorizer,
    (question, depth): (Question, u32),
) -> Result<AuthorizerAnswer, NoAnswer> {
    let service = service(&view.mesh, &view.own.namespace, authorizer).map_err(|unknown| unknown.to_string())?;
    let Some(_place) = client.gate.authorizers.place(authorizer) else {
        return Err(format!("{PLACES} requests wait for it already").into());
    };
    let address = service.addresses.iter().find(|its| its.network == view.own.network).map(|its| its.address);
    let target = WaypointTarget::Service {
        service: service.clone(),
        port: authorizer.port,
        address: address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
    };
    let (mut request, kind) = match question {
        Question::Grpc(question) => (request(authorizer, question)?, Kind::Http2),
        Question::Http(question) => {
            let kind = match target.protocol() {
                AppProtocol::Http2 | AppProtocol::Grpc => Kind::Http2,
                _ => Kind::Http1,
            };
            (over_http::aimed(*question, kind), kind)
        }
    };
    request.headers_mut().insert(DEPTH, HeaderValue::from(depth));
    let seat = Seat::default();
    let to = To { view, target: &target, seat: &seat, again: false, repeatable: true, held: None };
    let asking = async {
        let plan = upstream::plan(&client.gate, client.lane(), &view.mesh, &view.own, &target);
        let plan = plan.map_err(|failure| failure.to_string())?;
        let sent = send_by(&plan, client, &to, request, kind, &mut |_| ()).await;
        let (response, mut leased) = sent.map_err(|refusal| refusal.reason.into_owned())?;
        if response.headers().contains_key(DEPTH) {
            return Err(NoAnswer::Circle);
        }
        let answered = match &authorizer.http {
            None => answer(response).await,
            Some(how) => over_http::answer(how, response).await,
        };
        leased.answered();
        answered.map_err(NoAnswer::from)
    };
    match timers::timeout(authorizer.timeout, asking).await {
        Ok(answered) => answered,
        Err(_) => {
            seat.gave_up();
            Err(format!("it has not answered within {:?}", authorizer.timeout).into())
        }
    }
}

fn request(authorizer: &Authorizer, question: Vec<u8>) -> Result<Request<RequestBody>, String> {
    let mut message = BytesMut::with_capacity(PREFIX + question.len());
    message.put_u8(0);
    message.put_u32(u32::try_from(question.len()).map_err(|_| "the question is too long".to_owned())?);
    message.put_slice(&question);
    let malformed = |error: http::Error| format!("its address is malformed: {error}");
    let uri = Uri::builder().scheme("http").authority(format!("{}:{}", authorizer.hostname, authorizer.port));
    let uri = uri.path_and_query(CHECK_PATH).build().map_err(malformed)?;
    let mut request = Request::new(RequestBody::Whole(Some(Box::new(message.freeze()))));
    (*request.method_mut(), *request.uri_mut(), *request.version_mut()) = (Method::POST, uri, Version::HTTP_2);
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("leno/", env!("CARGO_PKG_VERSION"))));
    // At most eight digits (gRPC over HTTP/2, "Timeout").
    let timeout = match authorizer.timeout.as_millis() {
        millis @ ..100_000_000 => format!("{millis}m"),
        millis => format!("{}S", (millis / 1000).min(99_999_999)),
    };
    headers.insert(GRPC_TIMEOUT, HeaderValue::try_from(timeout).map_err(|error| error.to_string())?);
    Ok(request)
}

/// The one message of a response, if it is one to believe.
async fn answer(response: Response<Incoming>) -> Result<AuthorizerAnswer, String> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(format!("it answers with HTTP status {}", head.status.as_u16()));
    }
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    if !head.headers.get(CONTENT_TYPE).is_some_and(is_grpc) {
        return Err("its answer is not gRPC".to_owned());
    }
    if head.headers.contains_key(GRPC_STATUS) {
        ended(&head.headers)?;
    }
    let (mut message, mut is_ended) = (BytesMut::new(), false);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| format!("its answer breaks off: {error}"))?;
        match frame.into_data() {
            Ok(data) if message.len() + data.len() <= PREFIX + LONGEST_ANSWER => message.extend_from_slice(&data),
            Ok(_) => return Err(format!("its answer is longer than {LONGEST_ANSWER} bytes")),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                ended(&trailers)?;
                is_ended = true;
            }
        }
    }
    if !is_ended {
        return Err("its answer ends without a gRPC status".to_owned());
    }
    check_answer(&whole(message.freeze())?).map_err(|error| error.to_string())
}

/// Whether a call ended well.
fn ended(headers: &HeaderMap) -> Result<(), String> {
    let status = headers.get(GRPC_STATUS).and_then(|value| value.to_str().ok()).unwrap_or("none");
    if status == "0" {
        return Ok(());
    }
    let message = headers.get(GRPC_MESSAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (status, message): (String, String) = (status.chars().take(8).collect(), message.chars().take(128).collect());
    Err(format!("its call ends with gRPC status {status} {message:?}"))
}

/// The message of a response's body.
fn whole(body: Bytes) -> Result<Bytes, String> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err("its answer has no message".to_owned());
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err("its answer is compressed, which it was not asked for".to_owned());
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err("its answer is not one message".to_owned());
    }
    Ok(body.slice(PREFIX..))
}
