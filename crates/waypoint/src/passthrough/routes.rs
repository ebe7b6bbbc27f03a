//! Where TLSRoutes and TCPRoutes send connections that pass unread.

use std::future::poll_fn;
use std::sync::Arc;

use leno_model::AppProtocol;
use leno_policy::connections::{Connections, Unrouted};
use leno_policy::http::Destination;
use leno_policy::{ServerName, WaypointTarget};
use leno_proxy::tunnels::Tunnel;
use leno_tls::ClientHello;
use leno_tunnel::{TunnelStream, timers};

use crate::connection::target::{Asked, backend};
use crate::failure::Failure;
use crate::state::shared::Gate;

/// A client's first message of TLS is no longer than this. With certificates of the post-quantum kind it has a few KiB.
const LONGEST_HELLO: usize = 64 << 10;

/// The routes of connections to what was asked for.
fn routes(gate: &Gate, asked: &Asked) -> Option<Arc<Connections>> {
    let (service, port) = asked.target.routed()?;
    gate.tables.connections(&asked.mesh, service, port).filter(|all| !all.is_empty())
}

/// Whether what the client says first decides: about where the connection goes, or for the policies of where it may go.
pub(crate) fn needs_name(gate: &Gate, tunnel: &Tunnel, asked: &Asked) -> bool {
    let namespace = Some(&**tunnel.identity.namespace());
    let routes = routes(gate, asked);
    let Some(group) = routes.as_ref().and_then(|all| all.group(namespace)) else { return false };
    let policies_do = |to: Destination| {
        let target = backend(&asked.mesh, &asked.target, &to);
        let guard = target.and_then(|to| gate.guards.of_backend(&asked.mesh, &asked.own, &asked.target, &to));
        guard.is_some_and(|guard| guard.needs_server_name())
    };
    group.needs_name() || group.destinations().any(policies_do)
}

/// The server name that the client asks for, for policies. A client that does not speak TLS asks for none. Of one that says
/// nothing for a while, or what may be TLS and can't be read, nobody knows.
pub(crate) async fn heard(gate: &Gate, asked: &Asked, stream: &mut TunnelStream) -> ServerName {
    // Where a server may speak first, nobody waits long for the client.
    let first = match asked.target.protocol() {
        AppProtocol::Tls => gate.config.head_timeout,
        _ => gate.config.detection_timeout.min(gate.config.head_timeout),
    };
    if stream.unread_bytes().is_empty()
        && !matches!(timers::timeout(first, poll_fn(|cx| stream.poll_peek(cx))).await, Ok(Ok(true)))
    {
        return ServerName::Unknown;
    }
    if stream.unread_bytes().first() != Some(&TLS_HANDSHAKE) {
        return ServerName::Known(None);
    }
    match timers::timeout(gate.config.head_timeout, server_name(stream)).await {
        Ok(Ok(name)) => ServerName::Known(name),
        Ok(Err(_)) | Err(_) => ServerName::Unknown,
    }
}

/// The first byte of what a client of TLS says (RFC 8446 §5.1). In the form of SSL 2, which begins with another one, no server
/// can be named.
const TLS_HANDSHAKE: u8 = 22;

/// Whether a port that nothing is declared of is for connections: routes of connections are about it, and none of requests.
pub(crate) fn is_unread(gate: &Gate, tunnel: &Tunnel, asked: &Asked) -> bool {
    let namespace = Some(&**tunnel.identity.namespace());
    let Some((service, port)) = asked.target.routed() else { return false };
    routes(gate, asked).is_some_and(|all| all.group(namespace).is_some())
        && gate.tables.of(&asked.mesh, service, port).is_none_or(|table| table.is_empty())
}

/// Where a route sends the connection; `None` if none is about it.
pub(crate) async fn target(
    gate: &Gate,
    tunnel: &Tunnel,
    asked: &Asked,
    stream: Option<&mut TunnelStream>,
) -> Result<Option<WaypointTarget>, Failure> {
    let Some(routes) = routes(gate, asked) else { return Ok(None) };
    let Some(group) = routes.group(Some(tunnel.identity.namespace())) else { return Ok(None) };
    let name = match stream {
        Some(stream) if group.needs_name() => {
            let limit = gate.config.head_timeout;
            timers::timeout(limit, server_name(stream)).await.unwrap_or(Err(Failure::SlowHello(limit)))?
        }
        _ => None,
    };
    let rule = group.find(name.as_deref())?;
    let to = rule.choose(&mut rand::random::<u64>)?;
    let unknown = || Unrouted::Backend {
        rule: rule.label().clone(),
        problem: format!("the mesh does not know service {}", to.service).into(),
    };
    Ok(Some(backend(&asked.mesh, &asked.target, &to).ok_or_else(unknown)?))
}

/// The server name that a client of TLS asks for. All that it says stays unread.
async fn server_name(stream: &mut TunnelStream) -> Result<Option<String>, Failure> {
    let (mut hello, mut read) = (ClientHello::default(), 0);
    loop {
        let bytes = stream.unread_bytes();
        match hello.read(&bytes[read..]) {
            Ok(Some(name)) => return Ok(name),
            Ok(None) if bytes.len() < LONGEST_HELLO => read = bytes.len(),
            Ok(None) => return Err(Unrouted::NotTls.into()),
            Err(error) => {
                tracing::debug!(%error, "a route chooses by a TLS client's first message");
                return Err(Unrouted::NotTls.into());
            }
        }
        if !matches!(poll_fn(|cx| stream.poll_peek(cx)).await, Ok(true)) {
            return Err(Unrouted::NotTls.into());
        }
    }
}
