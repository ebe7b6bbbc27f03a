//! One connection in a tunnel: whom it is for, and which protocol it speaks.

use std::future::poll_fn;
use std::sync::Arc;

use http::{HeaderMap, Method};
use leno_model::AppProtocol;
use leno_policy::waypoint_target;
use leno_proxy::peers::{self, headers};
use leno_proxy::tunnels::Tunnel;
use leno_tunnel::server::InboundConnect;
use leno_tunnel::{TunnelStream, timers};

use crate::connection::authorise;
use crate::connection::record::Report;
use crate::connection::target::Asked;
use crate::downstream::http as requests;
use crate::failure::Failure;
use crate::passthrough::relay;
use crate::passthrough::relay::Reached;
use crate::passthrough::routes;
use crate::request::client::Client;
use crate::state::shared::Gate;
use crate::transport::detect_protocol::{Spoken, spoken};
use crate::transport::wire::{Wire, leave};

/// Answers one request for a connection, and carries it to its end.
pub(crate) async fn carry(gate: Arc<Gate>, tunnel: Arc<Tunnel>, mut request: InboundConnect) {
    let _lives = tunnel.worker.lives();
    let mut report = Report::new(&gate, &tunnel);
    if let Some(trace) = headers::trace_of(request.headers()) {
        report.trace(trace);
    }
    // A handshake would be refused now, so a request that relies on an old one is refused, too.
    if let Some(ago) = tunnel.proof.passed(gate.core.config.clock.now()) {
        request.turn_away();
        report.failed(&peers::Failure::Expired { address: tunnel.peer, peers: tunnel.proof.peers, ago }.into());
        return;
    }
    let method = request.method().clone();
    let authority = request.authority().unwrap_or_default().to_owned();
    let passed = headers::passed(request.headers());
    let asking = tokio::select! {
        asked = Box::pin(ask(&gate, &method, authority, passed)) => asked,
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = gate.stopped.cancelled() => Err(Failure::Stopped),
    };
    let asked = match asking {
        Ok(asked) => asked,
        Err(failure) => {
            request.refuse(failure.status(), HeaderMap::new());
            report.failed(&failure);
            return;
        }
    };
    report.asked(&tunnel, &asked);
    if let Err(failure) = authorise::own(&gate, &tunnel, &asked) {
        request.refuse(failure.status(), HeaderMap::new());
        report.failed(&failure);
        return;
    }
    match asked.target.protocol() {
        AppProtocol::Tcp | AppProtocol::Tls => relay::carry(&gate, &tunnel, asked, request, report).await,
        AppProtocol::Http11 | AppProtocol::Http2 | AppProtocol::Grpc => {
            if let Ok(stream) = request.accept(HeaderMap::new()) {
                declared_http(&gate, &tunnel, asked, stream, report).await;
            }
        }
        AppProtocol::Unknown if routes::is_unread(&gate, &tunnel, &asked) => {
            relay::carry(&gate, &tunnel, asked, request, report).await;
        }
        AppProtocol::Unknown => {
            if let Ok(stream) = request.accept(HeaderMap::new()) {
                undeclared(&gate, &tunnel, asked, stream, report).await;
            }
        }
    }
}

/// What the request is for. The control plane may have told the peer before it tells this process, so what is not known
/// is waited for.
async fn ask(gate: &Gate, method: &Method, authority: String, passed: u32) -> Result<Asked, Failure> {
    if *method != Method::CONNECT {
        return Err(Failure::NotConnect(method.to_string()));
    }
    gate.own.workload().await?;
    let mut last = None;
    let found = gate.own.until(|mesh, own| match waypoint_target(mesh, own, &authority) {
        Ok(target) => Some(Ok((target, mesh.clone(), own.clone()))),
        Err(refusal) if refusal.is_retryable() => {
            last = Some(refusal);
            None
        }
        Err(refusal) => Some(Err(refusal)),
    });
    match found.await {
        Some(Ok((target, mesh, own))) => Ok(Asked { authority, target, mesh, own, passed }),
        Some(Err(refusal)) => Err(Failure::Refused(Arc::new(refusal))),
        None => Err(last.map_or(Failure::Stopped, |refusal| Failure::Refused(Arc::new(refusal)))),
    }
}

/// HTTP was declared; its version shows. Anything else is for the HTTP library to refuse.
async fn declared_http(gate: &Arc<Gate>, tunnel: &Arc<Tunnel>, asked: Asked, mut stream: TunnelStream, report: Report) {
    // Peers open connections here until they have learnt that the waypoint drains, and those bring a request, too.
    let silent = async {
        gate.draining.cancelled().await;
        timers::sleep(requests::FAREWELL).await;
    };
    let first = tokio::select! {
        first = hear(&mut stream) => first,
        () = silent => Heard::End,
    };
    let is_http2 = matches!(asked.target.protocol(), AppProtocol::Http2 | AppProtocol::Grpc);
    let rest = async {
        let mut heard = first;
        loop {
            match heard {
                Heard::Bytes(Spoken::Http2) => return Ok(Some(true)),
                Heard::Bytes(Spoken::Unclear) => heard = hear(&mut stream).await,
                // RFC 9113 §3.4. The client may know nothing but HTTP/2, to which any answer in HTTP/1.1 is noise.
                Heard::Bytes(Spoken::Other) if is_http2 => return Err(Failure::NotHttp2),
                Heard::Bytes(_) => return Ok(Some(false)),
                Heard::End => return Ok(None),
            }
        }
    };
    match timers::timeout(gate.config.head_timeout, rest).await {
        Ok(Ok(Some(http2))) => {
            requests::serve(Client::new(gate, tunnel, asked, report), Wire::tunnel(stream), http2).await;
        }
        Ok(Ok(None)) => {}
        Ok(Err(failure)) => {
            report.failed(&failure);
            leave(stream, None);
        }
        Err(_) => report.failed(&Failure::SlowHead(gate.config.head_timeout)),
    }
}

/// Nothing was declared. Most clients speak first, and what they say decides. If this one does not for a moment, the
/// endpoint is connected to, for it may be the one to speak first.
async fn undeclared(
    gate: &Arc<Gate>,
    tunnel: &Arc<Tunnel>,
    asked: Asked,
    mut stream: TunnelStream,
    mut report: Report,
) {
    let mut upstream: Option<Reached> = None;
    let deadline = tokio::time::Instant::now() + gate.config.detection_timeout;
    let detected = loop {
        let heard = match &mut upstream {
            None => {
                let waited = tokio::select! {
                    heard = hear(&mut stream) => Some(heard),
                    () = timers::sleep_until(deadline) => None,
                    () = gate.stopped.cancelled() => return report.failed(&Failure::Stopped),
                };
                let Some(heard) = waited else {
                    let opened = Box::pin(relay::connect(gate, tunnel, &asked, Some(&mut stream), &mut report)).await;
                    match opened {
                        Ok(opened) => {
                            upstream = Some(opened);
                            continue;
                        }
                        // The client may speak HTTP yet, and then gets an answer that says so.
                        Err(failure) => {
                            let heard = tokio::select! {
                                heard = hear(&mut stream) => heard,
                                () = timers::sleep(gate.config.head_timeout) => Heard::End,
                            };
                            if matches!(heard, Heard::Bytes(Spoken::Http1 | Spoken::Http2)) {
                                break heard;
                            }
                            return report.failed(&failure);
                        }
                    }
                };
                heard
            }
            Some(upstream) => tokio::select! {
                heard = hear(&mut stream) => heard,
                () = upstream.speaks() => break Heard::Bytes(Spoken::Other),
                () = gate.stopped.cancelled() => return report.failed(&Failure::Stopped),
            },
        };
        match heard {
            // Whoever stops in the middle of what may be a request is answered by the HTTP library, or cut off by it.
            Heard::Bytes(Spoken::Unclear) if tokio::time::Instant::now() < deadline => {}
            heard => break heard,
        }
    };
    match detected {
        Heard::Bytes(Spoken::Http2) => {
            requests::serve(Client::new(gate, tunnel, asked, report), Wire::tunnel(stream), true).await;
        }
        Heard::Bytes(Spoken::Http1) => {
            requests::serve(Client::new(gate, tunnel, asked, report), Wire::tunnel(stream), false).await;
        }
        // The end of a client that has said nothing is passed on, too.
        Heard::Bytes(Spoken::Other | Spoken::Unclear) | Heard::End => {
            let upstream = match upstream {
                Some(upstream) => Ok(upstream),
                None => Box::pin(relay::connect(gate, tunnel, &asked, Some(&mut stream), &mut report)).await,
            };
            match upstream {
                Ok(upstream) => relay::relay(gate, tunnel, &asked, stream, upstream, report).await,
                Err(failure) => report.failed(&failure),
            }
        }
    }
}

/// What a client has said so far.
enum Heard {
    Bytes(Spoken),
    /// It has ended its half, or is gone, before it could be told what it speaks.
    End,
}

/// Waits for more bytes, and leaves them in the stream.
async fn hear(stream: &mut TunnelStream) -> Heard {
    match poll_fn(|cx| stream.poll_peek(cx)).await {
        Ok(true) => Heard::Bytes(spoken(stream.unread_bytes())),
        Ok(false) if !stream.unread_bytes().is_empty() => Heard::Bytes(Spoken::Other),
        Ok(false) | Err(_) => Heard::End,
    }
}
