//! A server's two loops: questions over UDP, and connections over TCP with one question after another.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::stream::{framed, read};

/// How many questions, or connections, of one socket are processed at once. Further ones wait in the socket's buffer, and are
/// dropped when it is full. So a client that floods a resolver slows down the resolver and nothing else.
const CONCURRENT: usize = 256;

/// How a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In a packet; the answer must fit into one, too.
    Udp,
    /// On a connection.
    Tcp,
}

/// The owner of a server: it answers, decides how long the server lives, and keeps its timers. Clones are the same owner.
pub trait Owner: Clone + Send + Sync + 'static {
    /// Held while a question or a connection is under way.
    type Counted: Send + 'static;

    /// One more question or connection has begun.
    fn count(&self) -> Self::Counted;

    /// The reply to a message; `None` if it gets none.
    fn reply(&self, message: &[u8], transport: Transport) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// The next connection of a client; `None` when the server takes no more.
    fn accept(&self, listener: &TcpListener) -> impl Future<Output = Option<TcpStream>> + Send;

    /// Resolves when the server takes no more questions.
    fn closing(&self) -> impl Future<Output = ()> + Send;

    /// Resolves when connections must end.
    fn stopped(&self) -> impl Future<Output = ()> + Send;

    /// The result of `io`, or an error if it takes longer than a client of TCP may be idle (RFC 7766 §6.2.3 asks for
    /// seconds).
    fn in_time<T: Send>(
        &self,
        io: impl Future<Output = io::Result<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send;
}

/// Answers on one UDP socket until the owner closes it. Questions that wait in the socket by then are answered, too.
pub async fn serve_udp(owner: impl Owner, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    let mut packet = vec![0; 4096];
    // After closing, the socket is read without the reactor, which may not know yet what waits there.
    let mut last: Option<std::net::UdpSocket> = None;
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let received = match &last {
            Some(last) => last.recv_from(&mut packet),
            None => tokio::select! {
                received = socket.recv_from(&mut packet) => received,
                () = owner.closing() => {
                    take_no_more(&socket);
                    let Ok(own) = socket.as_fd().try_clone_to_owned() else { return };
                    last = Some(own.into());
                    continue;
                }
            },
        };
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) if last.is_some() && error.kind() == io::ErrorKind::WouldBlock => return,
            // An ICMP error of an earlier reply shows up here; it says nothing about the next query.
            Err(_) => continue,
        };
        let query = packet[..length].to_vec();
        let (owner, socket) = (owner.clone(), socket.clone());
        let counted = owner.count();
        tokio::spawn(async move {
            if let Some(reply) = owner.reply(&query, Transport::Udp).await {
                // A client that has gone needs no answer.
                let _ = socket.send_to(&reply, client).await;
            }
            drop((permit, counted));
        });
    }
}

/// Makes new questions go to the other socket that answers on this port. A connected socket gets packets from its peer only,
/// and nobody sends from the discard port of the loopback address. It can still answer earlier questions.
fn take_no_more(socket: &UdpSocket) {
    const DISCARD: u16 = 9;
    // If this fails, the last questions may be lost, as any packet may.
    let _ =
        socket.local_addr().and_then(|own| SockRef::from(socket).connect(&SocketAddr::new(own.ip(), DISCARD).into()));
}

/// Answers on one TCP listener until the owner closes it.
pub async fn serve_tcp(owner: impl Owner, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Some(stream) = owner.accept(&listener).await else { return };
        let owner = owner.clone();
        let counted = owner.count();
        tokio::spawn(async move {
            tokio::select! {
                // A client that breaks off or is idle for too long ends its connection, no more.
                _ = converse(&owner, stream) => {}
                () = owner.stopped() => {}
            }
            drop((permit, counted));
        });
    }
}

async fn converse(owner: &impl Owner, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let query = owner.in_time(read(&mut stream)).await?;
        let Some(reply) = owner.reply(&query, Transport::Tcp).await else { return Ok(()) };
        let Some(framed) = framed(&reply) else { return Ok(()) };
        owner.in_time(stream.write_all(&framed)).await?;
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
