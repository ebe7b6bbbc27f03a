//! Peers for the tests of this crate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::server::{InboundConnect, Served, serve};
use crate::{ConnectRequest, Settings, Transport, TunnelStream};

pub(crate) fn request() -> ConnectRequest {
    ConnectRequest { authority: "10.0.0.1:80".to_owned(), headers: HeaderMap::new() }
}

pub(crate) async fn echo(inbound: InboundConnect) {
    if let Ok(mut stream) = inbound.accept(HeaderMap::new()) {
        let mut buffer = vec![0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..len]).await.is_err() {
                return;
            }
        }
        let _ = stream.shutdown().await;
    }
}

pub(crate) async fn say(stream: &mut TunnelStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, text.as_bytes());
}

/// Lets every other task run until it waits.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// One server side of a connection, under the test's control.
pub(crate) struct Peer {
    pub(crate) drain: Option<oneshot::Sender<Instant>>,
    pub(crate) task: JoinHandle<Served>,
}

/// Dials in-process servers and keeps their ends.
#[derive(Clone)]
pub(crate) struct Farm {
    pub(crate) dials: Arc<AtomicUsize>,
    pub(crate) peers: Arc<Mutex<Vec<Peer>>>,
    settings: Settings,
}

impl Farm {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { dials: Arc::default(), peers: Arc::default(), settings }
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.load(SeqCst)
    }

    pub(crate) fn dial(&self) -> DuplexStream {
        self.dial_to(|inbound| {
            tokio::spawn(echo(inbound));
        })
    }

    pub(crate) fn dial_to(&self, handler: impl FnMut(InboundConnect) + Send + 'static) -> DuplexStream {
        self.dials.fetch_add(1, SeqCst);
        let (near, far) = duplex(64 << 10);
        let (drain, drained) = oneshot::channel();
        let settings = self.settings.clone();
        let task = tokio::spawn(async move {
            let drain = async {
                match drained.await {
                    Ok(deadline) => deadline,
                    Err(_) => std::future::pending().await,
                }
            };
            serve(far, &settings, drain, handler).await
        });
        self.peers.lock().push(Peer { drain: Some(drain), task });
        near
    }

    /// Tells the peer of connection `index` to drain until `deadline`.
    pub(crate) fn drain(&self, index: usize, deadline: Instant) {
        self.peers.lock()[index].drain.take().unwrap().send(deadline).unwrap();
    }

    pub(crate) async fn served(&self, index: usize) -> Served {
        let task = {
            let mut peers = self.peers.lock();
            std::mem::replace(&mut peers[index].task, tokio::spawn(std::future::pending()))
        };
        task.await.unwrap()
    }
}

/// A transport that drains.
pub(crate) struct Draining {
    pub(crate) io: DuplexStream,
    pub(crate) at: Instant,
}

impl Transport for Draining {
    fn drains_at(&self) -> Option<Instant> {
        Some(self.at)
    }
}

impl AsyncRead for Draining {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Draining {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
