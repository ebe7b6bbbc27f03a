//! The threads connections run on.
//!
//! Single-threaded runtimes: a connection stays with the tunnel it uses, so that no message has to
//! wake another thread. As many as cores. Which of them take what is `pod::workers`' to say.

use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;

use leno_capture::NetworkNamespace;
use leno_telemetry::accepting;
use leno_tunnel::timers;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use crate::{Error, give_back};

/// The data-path threads. Dropped, they finish what they are polling and end.
pub(crate) struct Workers {
    handles: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts `count` threads; 0 for one per core. Each lets go of freed memory by `trim` and
    /// leaves its timers to `keeper`, which must outlive it.
    pub(crate) fn start(count: usize, trim: fn(), keeper: &Handle) -> Result<Self, Error> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let count = if count == 0 { cores() } else { count };
        let stop = CancellationToken::new();
        let mut workers = Self { handles: Vec::new(), threads: Vec::new(), stop };
        for index in 0..count {
            let runtime = Builder::new_current_thread()
                // And not of time: that would read the clock and look through its timers at each
                // turn, 1 % of the processor time of a request, for none that are kept here.
                .enable_io()
                .on_thread_park(|| {
                    leno_tunnel::thread_sleeps();
                    NetworkNamespace::go_home();
                })
                .build()
                .map_err(Error::Runtime)?;
            workers.handles.push(runtime.handle().clone());
            let stop = workers.stop.clone();
            let keeper = keeper.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    give_back::by(trim);
                    timers::keep_on(&keeper);
                    NetworkNamespace::linger();
                    runtime.block_on(stop.cancelled());
                    NetworkNamespace::go_home();
                })
                .map_err(Error::Runtime)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// One handle per worker.
    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker that panicked has already told so; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// Moves a connection to a worker, which goes on with it by `then`. A failure is that connection's: it is closed.
pub(crate) fn hand_over<F>(
    stream: TcpStream,
    peer: SocketAddr,
    worker: &Handle,
    then: impl FnOnce(TcpStream) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    match stream.into_std() {
        Ok(stream) => drop(worker.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => then(stream).await,
                Err(error) => tracing::warn!(%error, %peer, "a connection can't be taken over by another thread"),
            }
        })),
        Err(error) => tracing::warn!(%error, %peer, "a connection can't be handed over to another thread"),
    }
}

/// As `accept`, without asking the reactor, which may not have heard yet.
fn already_there(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = SockRef::from(listener).accept()?;
    stream.set_nonblocking(true)?;
    let peer = peer.as_socket().ok_or_else(|| io::Error::other("the peer has no address"))?;
    Ok((TcpStream::from_std(stream.into())?, peer))
}

/// The next connection, or `None` once `stopping` resolves and none waits any more: closing a
/// listener resets what its queue holds. A failure to accept is that connection's, never the
/// listener's.
pub(crate) async fn accept_next(
    listener: &TcpListener,
    stopping: impl Future<Output = ()>,
) -> Option<(TcpStream, SocketAddr)> {
    tokio::pin!(stopping);
    let mut stopped = false;
    loop {
        let accepted = if stopped {
            already_there(listener)
        } else {
            tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stopping => {
                    stopped = true;
                    continue;
                }
            }
        };
        match accepted {
            Err(error) if stopped && error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok((stream, peer)) => return Some((stream, crate::dial::canonical(peer))),
            Err(error) => match accepting::pause_after(&error) {
                // It may come for ever, and whoever waits for the listener to close with it.
                Some(_) if stopped && !accepting::is_shortage(&error) => return None,
                Some(pause) => timers::sleep(pause).await,
                // There are no more of these than there are connections in the queue.
                None => {}
            },
        }
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
