//! The pods' DNS: services of the mesh are answered here, everything else goes on to the
//! resolvers of the node, asked from the pod's own namespace so that it is the pod that asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::sockets::{self, ListenOptions};
use leno_dns::{Answer, Parsed, Question, RecordType, ResponseCode};
use leno_policy::dns::{Client, DnsAnswer, Family};
use leno_proxy::streams::accept_next;
use leno_tunnel::timers::timeout;
use nix::sys::socket::{SockaddrStorage, recvfrom};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::dial;
use crate::pod::Pod;
use crate::pod::connections::Counted;

/// Time to live of answers about the mesh, in seconds: short, for they follow the mesh.
const TTL: u32 = 30;
/// Questions of one pod under way at once. Past it they wait in the socket's buffer, then drop:
/// a pod that floods its resolver slows itself, not the node.
const CONCURRENT: usize = 256;
/// How long a TCP client may say nothing (RFC 7766 §6.2.3 asks for seconds).
const TCP_IDLE: Duration = Duration::from_secs(5);
/// How long one resolver may take before the next is asked.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers on one UDP socket until the pod takes no more questions, and those that wait there by then. Each counts as a
/// connection does: whoever drains is not to go before it is answered.
pub(crate) async fn serve_udp(pod: Arc<Pod>, _accepting: Counted, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    let mut packet = vec![0; 4096];
    let mut closing = false;
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let received = if closing {
            already_there(&socket, &mut packet)
        } else {
            tokio::select! {
                received = socket.recv_from(&mut packet) => received,
                () = pod.closing() => {
                    closing = true;
                    take_no_more(&socket);
                    continue;
                }
            }
        };
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) if closing && error.kind() == std::io::ErrorKind::WouldBlock => return,
            // An ICMP error of an earlier reply shows up here; it says nothing about the next query.
            Err(_) => continue,
        };
        let query = packet[..length].to_vec();
        let (pod, socket) = (pod.clone(), socket.clone());
        let counted = pod.connections().count();
        tokio::spawn(async move {
            if let Some(reply) = reply(&pod, &query, Transport::Udp).await {
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
    let connected =
        socket.local_addr().and_then(|own| SockRef::from(socket).connect(&SocketAddr::new(own.ip(), DISCARD).into()));
    if let Err(error) = connected {
        tracing::debug!(%error, "the last questions of a pod's DNS may be lost");
    }
}

/// As `recv_from`, without asking the reactor, which may not have heard yet.
fn already_there(socket: &UdpSocket, packet: &mut [u8]) -> std::io::Result<(usize, SocketAddr)> {
    let (length, client) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), packet)?;
    let client = client.as_ref().and_then(|client| {
        let v4 = client.as_sockaddr_in().map(|v4| SocketAddr::from(SocketAddrV4::from(*v4)));
        v4.or_else(|| client.as_sockaddr_in6().map(|v6| SocketAddr::from(SocketAddrV6::from(*v6))))
    });
    client.map(|client| (length, client)).ok_or_else(|| std::io::Error::other("the client has no address"))
}

/// Answers on one TCP listener until the pod takes no more connections.
pub(crate) async fn serve_tcp(pod: Arc<Pod>, _accepting: Counted, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONCURRENT));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Some((stream, _)) = accept_next(&listener, pod.closing()).await else { return };
        let pod = pod.clone();
        let counted = pod.connections().count();
        tokio::spawn(async move {
            tokio::select! {
                // A client that breaks off or is idle for too long ends its connection, no more.
                _ = serve_tcp_client(&pod, stream) => {}
                () = pod.stopped() => {}
            }
            drop((permit, counted));
        });
    }
}

async fn serve_tcp_client(pod: &Pod, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let query = timeout(TCP_IDLE, leno_dns::read(&mut stream)).await??;
        let Some(reply) = reply(pod, &query, Transport::Tcp).await else { return Ok(()) };
        let Some(framed) = leno_dns::framed(&reply) else { return Ok(()) };
        timeout(TCP_IDLE, stream.write_all(&framed)).await??;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

async fn reply(pod: &Pod, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let question = match leno_dns::parse(query) {
        Parsed::Question(question) => question,
        Parsed::Refusal(refusal) => return Some(refusal),
        Parsed::Garbage => return None,
    };
    if let Some(local) = local_answer(pod, &question, transport).await {
        return Some(local);
    }
    match forward(pod, query, transport).await {
        Some(reply) => Some(reply),
        None => Some(question.error(ResponseCode::ServFail)),
    }
}

async fn local_answer(pod: &Pod, question: &Question, transport: Transport) -> Option<Vec<u8>> {
    let family = match question.record_type() {
        RecordType::A => Family::V4,
        RecordType::AAAA => Family::V6,
        _ => return None,
    };
    let Ok((mesh, client)) = pod.workload().await else {
        // Who asks decides what a name means; a guess could send the pod to another's service.
        return Some(question.error(ResponseCode::ServFail));
    };
    let domain = &pod.context().core.config.cluster_domain;
    let mut random = rand::random::<u64>;
    let client = Client { namespace: &client.namespace, network: &client.network };
    let answer = leno_policy::dns::resolve(&mesh, client, domain, &question.name(), family, &mut random);
    let udp = transport == Transport::Udp;
    match answer {
        DnsAnswer::Records { cname, addresses } => {
            let usable: Vec<IpAddr> =
                addresses.into_iter().filter(|ip| ip.is_ipv4() || pod.context().core.config.ipv6).collect();
            Some(question.answer(&Answer { ttl: TTL, cname, addresses: usable, targets: Vec::new() }, udp))
        }
        DnsAnswer::NoData => Some(question.answer(&Answer::default(), udp)),
        DnsAnswer::NotMine => None,
    }
}

async fn forward(pod: &Pod, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    for resolver in &pod.context().resolvers {
        let attempt = async {
            match transport {
                Transport::Udp => ask_udp(pod, *resolver, query).await,
                Transport::Tcp => ask_tcp(pod, *resolver, query).await,
            }
        };
        match timeout(UPSTREAM_TIMEOUT, attempt).await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%resolver, %error, "resolver failed"),
            Err(_) => tracing::debug!(%resolver, "resolver did not answer"),
        }
    }
    None
}

async fn ask_udp(pod: &Pod, resolver: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let any = match resolver {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let options = ListenOptions { reuse_port: false, transparent: false, ..ListenOptions::default() };
    let socket = sockets::udp(pod.netns(), any, &options).map_err(std::io::Error::other)?;
    let socket = UdpSocket::from_std(socket)?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut reply = vec![0; 4096];
    loop {
        let length = socket.recv(&mut reply).await?;
        if leno_dns::answers(query, &reply[..length]) {
            reply.truncate(length);
            return Ok(reply);
        }
    }
}

async fn ask_tcp(pod: &Pod, resolver: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = dial::tcp(pod, resolver).await.map_err(std::io::Error::other)?;
    let framed = leno_dns::framed(query).ok_or_else(|| std::io::Error::other("the question is too long"))?;
    stream.write_all(&framed).await?;
    let reply = leno_dns::read(&mut stream).await?;
    if leno_dns::answers(query, &reply) {
        Ok(reply)
    } else {
        Err(std::io::Error::other("not an answer to the question"))
    }
}

/// The resolvers named in a `resolv.conf` (resolv.conf(5)); those without a usable address are
/// skipped.
pub(crate) fn resolvers(resolv_conf: &str) -> Vec<SocketAddr> {
    resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, 53))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf() {
        let text = "# c\nnameserver 10.0.0.1\n  nameserver fd00::1\nnameserver junk\nsearch a b\n";
        assert_eq!(resolvers(text), ["10.0.0.1:53".parse().expect("addr"), "[fd00::1]:53".parse().expect("addr")]);
    }
}
