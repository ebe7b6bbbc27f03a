//! For the tests of this crate.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use http::HeaderMap;
use leno_tunnel::{ConnectRequest, InboundConnect, Pool, Settings, TunnelStream, server};
use tokio::sync::mpsc;

/// A tunnel in memory: a peer's end and the waypoint's. It lasts as long as the pool.
pub(crate) struct Tunnel {
    pub(crate) peer: TunnelStream,
    pub(crate) here: TunnelStream,
    pub(crate) _pool: Pool<(), Arc<Infallible>>,
}

/// Opens one.
pub(crate) async fn tunnel() -> Tunnel {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (accept, mut accepted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let accept = move |inbound: InboundConnect| drop(accept.send(inbound.accept(HeaderMap::new())));
        server::serve(far, &Settings::default(), pending(), accept).await
    });
    let (pool, mut near) = (Pool::new(Settings::default()), Some(near));
    let dial = || {
        let near = near.take().expect("one connection");
        std::future::ready(Ok(near))
    };
    let request = ConnectRequest { authority: "web:80".to_owned(), headers: HeaderMap::new() };
    let (peer, _) = pool.open(&(), dial, request).await.expect("a tunnel");
    let here = accepted.recv().await.expect("a request").expect("a tunnel");
    Tunnel { peer, here, _pool: pool }
}
