//! A server's two loops: questions over UDP, and connections over TCP with a question after another.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::stream::{framed, read};

/// Questions, or connections, of one socket under way at once. Past it they wait in the socket's buffer, then drop: who
/// floods a resolver slows that down and nothing else.
const CONCURRENT: usize = 256;

/// How a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In a packet, as the answer must.
    Udp,
    /// On a connection.
    Tcp,
}

/// Whose server it is: who answers, how long it lives, and who keeps its time. Its clones are one owner.
pub trait Owner: Clone + Send + Sync + 'static {
    /// Held while a question or a connection is under way.
    type Counted: Send + 'static;

    /// One more of them has begun.
    fn count(&self) -> Self::Counted;

    /// The reply to a message, unless that deserves none.
    fn reply(&self, message: &[u8], transport: Transport) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// The next connection of a client; `None` once the server takes no more.
    fn accept(&self, listener: &TcpListener) -> impl Future<Output = Option<TcpStream>> + Send;

    /// Resolves when the server takes no more questions.
    fn closing(&self) -> impl Future<Output = ()> + Send;

    /// Resolves when connections must end.
    fn stopped(&self) -> impl Future<Output = ()> + Send;

    /// What becomes of `io`, unless it takes longer than a client of TCP may say, or take, nothing (RFC 7766 §6.2.3 asks
    /// for seconds). Then it is an error.
    fn in_time<T: Send>(
        &self,
        io: impl Future<Output = io::Result<T>> + Send,
    ) -> impl Future<Output = io::Result<T>> + Send;
}

/// Answers on one UDP socket until no more questions are to be taken, and those that wait there by then.
pub async fn serve_udp(owner: impl Owner, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    let mut packet = vec![0; 4096];
    // Once no more are to be taken: the same socket without the reactor, which may not have heard yet what waits there.
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
                // A client that has gone is nobody's trouble.
                let _ = socket.send_to(&reply, client).await;
            }
            drop((permit, counted));
        });
    }
}

/// Has new questions go to whoever else answers on the port. A socket that is connected gets nothing from anybody but its
/// peer, and nobody sends from the discard port of the loopback address; it can still answer what came before.
fn take_no_more(socket: &UdpSocket) {
    const DISCARD: u16 = 9;
    // Where this fails, the last questions may be lost, as any packet may.
    let _ =
        socket.local_addr().and_then(|own| SockRef::from(socket).connect(&SocketAddr::new(own.ip(), DISCARD).into()));
}

/// Answers on one TCP listener until no more connections are to be taken.
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
