//! The pods' DNS. Names of the mesh are answered here. Other questions go to the node's resolvers, from the pod's own
//! namespace, so that they come from the pod.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_capture::sockets::{self, ListenOptions};
use leno_dns::{Answer, Owner, Parsed, Question, RecordType, ResponseCode, Transport};
use leno_policy::dns::{Client, DnsAnswer, Family};
use leno_proxy::streams::accept_next;
use leno_telemetry::metrics::DnsProtocol;
use leno_tunnel::timers::timeout;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::dial;
use crate::pod::Pod;
use crate::pod::connections::Counted;

/// Time to live of answers about the mesh, seconds. It is short because the answers change with the mesh.
const TTL: u32 = 30;
/// How long a TCP client may be silent (RFC 7766 §6.2.3 asks for seconds).
const TCP_IDLE: Duration = Duration::from_secs(5);
/// How long one resolver may take before the next is asked.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(3);

/// A pod as the owner of its DNS. Each question counts as a connection does: whoever drains is not to go before it is answered.
#[derive(Clone)]
struct PodDns(Arc<Pod>);

impl Owner for PodDns {
    type Counted = Counted;

    fn count(&self) -> Counted {
        self.0.connections().count()
    }

    async fn reply(&self, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        reply(&self.0, message, transport).await
    }

    async fn accept(&self, listener: &TcpListener) -> Option<TcpStream> {
        accept_next(listener, self.0.closing()).await.map(|(stream, _)| stream)
    }

    async fn closing(&self) {
        self.0.closing().await;
    }

    async fn stopped(&self) {
        self.0.stopped().await;
    }

    async fn in_time<T: Send>(&self, io: impl Future<Output = io::Result<T>> + Send) -> io::Result<T> {
        timeout(TCP_IDLE, io).await?
    }
}

/// Answers on one UDP socket until the pod takes no more questions.
pub(crate) async fn serve_udp(pod: Arc<Pod>, _accepting: Counted, socket: UdpSocket) {
    leno_dns::serve_udp(PodDns(pod), socket).await;
}

/// Answers on one TCP listener until the pod takes no more connections.
pub(crate) async fn serve_tcp(pod: Arc<Pod>, _accepting: Counted, listener: TcpListener) {
    leno_dns::serve_tcp(PodDns(pod), listener).await;
}

/// What metrics call a transport.
fn protocol(transport: Transport) -> DnsProtocol {
    match transport {
        Transport::Udp => DnsProtocol::Udp,
        Transport::Tcp => DnsProtocol::Tcp,
    }
}

async fn reply(pod: &Pod, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let question = match leno_dns::parse(query) {
        Parsed::Question(question) => question,
        Parsed::Refusal(refusal) => return Some(refusal),
        Parsed::Garbage => return None,
    };
    let metrics = &pod.context().core.metrics;
    let kind = query_type(&question);
    let client = pod.workload_now().map(|(_, workload)| workload);
    metrics.dns_request(kind, protocol(transport), client.as_deref());
    if let Some(local) = local_answer(pod, &question, transport).await {
        return Some(local);
    }
    let asked = Instant::now();
    let reply = forward(pod, query, transport).await;
    metrics.dns_upstream(kind, protocol(transport), client.as_deref(), asked.elapsed(), reply.is_none());
    Some(reply.unwrap_or_else(|| question.error(ResponseCode::ServFail)))
}

/// The type of a question as metrics name it. A pod can ask for 65536 types: all that nobody uses are one.
fn query_type(question: &Question) -> &'static str {
    const KNOWN: [RecordType; 13] = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::ANY,
        RecordType::CAA,
        RecordType::CNAME,
        RecordType::HTTPS,
        RecordType::MX,
        RecordType::NAPTR,
        RecordType::NS,
        RecordType::PTR,
        RecordType::SOA,
        RecordType::SRV,
        RecordType::TXT,
    ];
    let kind = question.record_type();
    KNOWN.into_iter().find(|known| *known == kind).map_or("other", <&str>::from)
}

async fn local_answer(pod: &Pod, question: &Question, transport: Transport) -> Option<Vec<u8>> {
    let family = match question.record_type() {
        RecordType::A => Family::V4,
        RecordType::AAAA => Family::V6,
        _ => return None,
    };
    let Ok((mesh, client)) = pod.caller().await else {
        // The meaning of a name depends on the client. A guess could send the pod to another namespace's service.
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

async fn ask_udp(pod: &Pod, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any = match resolver {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let options = ListenOptions { reuse_port: false, transparent: false, ..ListenOptions::default() };
    let socket = sockets::udp(pod.netns(), any, &options).map_err(io::Error::other)?;
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

async fn ask_tcp(pod: &Pod, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = dial::tcp(pod, resolver).await.map_err(io::Error::other)?;
    let framed = leno_dns::framed(query).ok_or_else(|| io::Error::other("the question is too long"))?;
    stream.write_all(&framed).await?;
    let reply = leno_dns::read(&mut stream).await?;
    if leno_dns::answers(query, &reply) { Ok(reply) } else { Err(io::Error::other("not an answer to the question")) }
}

/// The resolvers in a `resolv.conf` (resolv.conf(5)). Those without a usable address are skipped.
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
