//! Reads a key set from its address: through the mesh if the address is one of its services, else over HTTPS.
//!
//! Over plain HTTP outside of the mesh, anybody on the way could put his own keys in, so that is refused; and so is a redirect,
//! which would lead elsewhere than the author of the policy wrote.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leno_policy::Route;
use leno_tls::jwk::LONGEST_SET;
use leno_tls::{ControlConnector, HANDSHAKE_TIMEOUT, RootSource};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::body::upstream::RequestBody;
use crate::pool::stream::Stream;
use crate::request::client::Client;
use crate::state::jwks::Errand;
use crate::transport::wire::Wire;
use crate::upstream::{self, Caller};

/// The text at an address.
pub(crate) async fn keys(client: &Arc<Client>, uri: &str) -> Result<Bytes, String> {
    let uri: Uri = uri.parse().map_err(|error| format!("this is no address: {error}"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        return Err("this is no address: it has no scheme or no host".to_owned());
    };
    let secure = *scheme == Scheme::HTTPS;
    if !secure && *scheme != Scheme::HTTP {
        return Err(format!("{scheme} is neither http nor https"));
    }
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let view = client.view();
    let service = view.mesh.service_by_hostname(authority.host(), &view.own.namespace).cloned();
    let Some(service) = service else {
        if !secure {
            let host = authority.host();
            return Err(format!("{host} is no service of the mesh, and over plain http anybody could forge its keys"));
        }
        return outside(client, uri.clone()).await;
    };
    if secure {
        let why = "a service of the mesh is read over http, which the mesh encrypts; write http instead of https";
        return Err(why.to_owned());
    }
    let own_network = service.addresses.iter().find(|its| its.network == view.own.network);
    let Some(address) = own_network else {
        return Err(format!("Service {} is headless; its keys are read from a Service with a ClusterIP", service.id));
    };
    let gate = &client.gate;
    let destination = SocketAddr::new(address.address, port);
    let plan = upstream::as_any_client(gate, &view.mesh, &view.own, destination).map_err(|error| error.to_string())?;
    let (from, service) = (client.tunnel.local, Some(&service));
    let caller = Caller { own: &view.own, from, service, connect_timeout: None, passed: client.passed };
    let mut last = "it has no endpoint".to_owned();
    for route in plan.attempts() {
        if !matches!(route, Route::Hbone { .. }) {
            last = "its endpoint is not in the mesh, and in the clear anybody could forge its keys".to_owned();
            continue;
        }
        match upstream::open(gate, client.lane(), &caller, route, true).await {
            Ok(Stream::Tunnel(stream)) => return ask(Wire::tunnel(stream), &uri, authority).await,
            Ok(Stream::Tcp(_)) => {}
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

async fn outside(client: &Arc<Client>, uri: Uri) -> Result<Bytes, String> {
    let (answer, answered) = oneshot::channel();
    let sent = client.gate.errands.try_send(Errand { uri, answer });
    sent.map_err(|_| "too many addresses are being read at once".to_owned())?;
    answered.await.map_err(|_| "the waypoint ends".to_owned())?
}

/// Reads what is outside of the mesh. Never returns; for the control thread.
pub(crate) async fn run_errands(mut errands: mpsc::Receiver<Errand>) {
    while let Some(mut errand) = errands.recv().await {
        tokio::spawn(async move {
            // Whoever waits gives up after its own time.
            let read = tokio::select! {
                read = over_tls(&errand.uri) => read,
                () = errand.answer.closed() => return,
            };
            let _ = errand.answer.send(read);
        });
    }
}

async fn over_tls(uri: &Uri) -> Result<Bytes, String> {
    let authority = uri.authority().ok_or("this is no address: it has no host")?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((host, port)).await.map_err(|error| format!("cannot connect: {error}"))?;
    let stream = ControlConnector::new(RootSource::System).connect_http1(stream, host, HANDSHAKE_TIMEOUT).await;
    let stream = stream.map_err(|error| format!("no trusted connection: {error}"))?;
    ask(TokioIo::new(stream), uri, authority).await
}

async fn ask<IO>(io: IO, uri: &Uri, authority: &Authority) -> Result<Bytes, String>
where
    IO: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake::<_, RequestBody>(io).await.map_err(failed)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header(HOST, authority.as_str())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("leno/", env!("CARGO_PKG_VERSION")))
        .body(RequestBody::Empty)
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answers with status {}", response.status()));
        }
        whole(response.into_body()).await
    };
    // The connection lives as long as the exchange.
    let mut connection = pin!(connection);
    let mut exchange = pin!(exchange);
    let mut ended = false;
    std::future::poll_fn(move |cx| {
        if !ended {
            ended = connection.as_mut().poll(cx).is_ready();
        }
        exchange.as_mut().poll(cx)
    })
    .await
}

async fn whole(mut body: Incoming) -> Result<Bytes, String> {
    let mut text = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| format!("its answer breaks off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if text.len() + data.len() > LONGEST_SET {
            return Err(format!("its answer is longer than {LONGEST_SET} bytes"));
        }
        text.extend_from_slice(&data);
    }
    Ok(text.freeze())
}
