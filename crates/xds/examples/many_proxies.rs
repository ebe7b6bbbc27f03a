//! What many proxies cost the control plane's side of discovery: this process serves, and starts itself again as the proxies,
//! real delta clients over TLS.
//!
//! `cargo run --profile dist -p leno-xds --example many_proxies -- [workloads] [proxies] [changes] [per change] [pause in ms] [again]`
//!
//! With `again`, the proxies come back after a restart: each tells what it holds, which is all there is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement: what fails ends it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::Identity;
use leno_proto::discovery::{DeltaDiscoveryRequest, Node};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor, ControlConnector, RootSource};
use leno_xds::server::{
    AuthError, Authenticator, CaService, Caller, Limits, Memory, Service, Services, SignError, Signer, serve,
};
use leno_xds::{Resource, Resources};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the kernel back what the calling thread has freed, as the `leno` program does.
#[allow(unsafe_code, reason = "the only way to ask the allocator for anything")]
fn trim() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: `void mi_collect(bool)` of mimalloc, which is linked; any thread may call it at any time outside of the allocator.
    unsafe { mi_collect(true) }
}

const NAME: &str = "control.test";
/// Bytes of a usual workload's message without its time stamp.
const BODY: usize = 190;
/// Proxies that connect at a time.
const AT_ONCE: usize = 50;

struct Anybody;

impl Authenticator for Anybody {
    fn authenticate<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(std::future::ready(Ok(Caller::default())))
    }
}

impl Signer for Anybody {
    fn sign<'a>(
        &'a self,
        _: &'a Caller,
        _: &'a str,
        _: Option<Identity>,
        _: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>> {
        Box::pin(std::future::ready(Err(SignError::Invalid("nobody asks".to_owned()))))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let memory = Arc::new(Memory::new(trim));
    let parks = memory.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_park(move || parks.on_park())
        .build()
        .unwrap();
    match arguments.split_first() {
        Some((role, rest)) if role == "proxies" => {
            let [count, held, port] = [0, 1, 2].map(|at| rest[at].parse().unwrap());
            runtime.block_on(proxies(count, held, port as u16, rest[3].clone()));
        }
        _ => {
            let number = |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().unwrap());
            runtime.block_on(control_plane(
                memory,
                Plan {
                    workloads: number(0, 5000),
                    proxies: number(1, 100),
                    changes: number(2, 50),
                    per_change: number(3, 1),
                    pause: Duration::from_millis(number(4, 200) as u64),
                    again: arguments.iter().any(|argument| argument == "again"),
                },
            ));
        }
    }
}

struct Plan {
    workloads: usize,
    proxies: usize,
    changes: usize,
    per_change: usize,
    pause: Duration,
    again: bool,
}

/// Processor time of this process.
fn cpu() -> Duration {
    let mut total = 0u64;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        total += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    }
    Duration::from_nanos(total)
}

/// `VmRSS` or `VmHWM`, MiB.
fn memory(field: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

fn workload(n: usize, stamp: u128) -> (String, Resource) {
    let name = format!("Kubernetes//Pod/ns-{}/svc-{}-6b7f9c5d4-{n:05x}", n % 50, n % 500);
    let body = format!("{:<BODY$}<{stamp:016}>", format!("{name} "));
    let aliases = vec![format!("network/10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)];
    (name, Resource::new(body).with_aliases(aliases))
}

async fn control_plane(gives_back: Arc<Memory>, plan: Plan) {
    let mut resources = Resources::default();
    for n in 0..plan.workloads {
        let (name, resource) = workload(n, 0);
        resources.upsert(ADDRESS_TYPE, name, resource);
    }
    for n in 0..100 {
        resources.upsert(AUTHORIZATION_TYPE, format!("ns-{n}/policy"), Resource::new("policy").with_reach(0));
    }
    resources.set_generation(1);
    let before = memory("VmRSS");
    let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap());
    let acceptor = ControlAcceptor::from_authority(authority.clone(), vec![NAME.to_owned()], Vec::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (publish, watched) = watch::channel(Arc::new(resources.clone()));
    let service = Service::new(watched, Arc::new(Anybody));
    let heard = service.heard();
    tokio::spawn(async move { gives_back.after_bursts(heard).await });
    let services =
        Services { discovery: service.clone(), certificates: CaService::new(Arc::new(Anybody), Arc::new(Anybody)) };
    tokio::spawn(serve(listener, acceptor, services, Limits::default(), std::future::pending()));

    let (start, begun) = (cpu(), Instant::now());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["proxies", &plan.proxies.to_string()])
        .args([if plan.again { plan.workloads } else { 0 }.to_string(), port.to_string(), authority.root_pem()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let synced = async |generation: u64| {
        let mut changes = service.sync_changes();
        loop {
            let there = service.sync_status();
            let done = there.iter().filter(|proxy| proxy.generation.is_some_and(|g| g >= generation)).count();
            if done == plan.proxies {
                return;
            }
            changes.mark_unchanged();
            let _ = changes.changed().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    synced(1).await;
    let wall = begun.elapsed();
    println!(
        "first sync of {} proxies × {} workloads: {:.2?} CPU, {wall:.2?}; peak {:.0} MiB",
        plan.proxies,
        plan.workloads,
        cpu() - start,
        memory("VmHWM"),
    );
    let at_once = memory("VmRSS");
    // Waits until the memory needed for that is given back.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = memory("VmRSS");
    let each = (after - before) * 1024.0 / plan.proxies as f64;
    println!("memory: {before:.0} MiB before, {at_once:.0} MiB in sync, {after:.0} MiB later: {each:.0} KiB per proxy");

    let (start, mut computed) = (cpu(), Duration::ZERO);
    for change in 0..plan.changes {
        let due = Instant::now() + plan.pause;
        let before = cpu();
        for n in 0..plan.per_change {
            let (name, resource) = workload((change * 7919 + n * 500) % plan.workloads, now());
            resources.upsert(ADDRESS_TYPE, name, resource);
        }
        resources.set_generation(resources.generation() + 1);
        publish.send_replace(Arc::new(resources.clone()));
        computed += cpu() - before;
        tokio::time::sleep_until(due.into()).await;
    }
    synced(resources.generation()).await;
    let used = cpu() - start;
    let each = used / (plan.changes * plan.proxies) as u32;
    println!(
        "{} changes of {}: {each:.1?} CPU per proxy and change, of which {:.1?} for the change itself; {:.0} MiB",
        plan.changes,
        plan.per_change,
        computed / plan.changes as u32,
        memory("VmRSS"),
    );
    drop(child.stdin.take());
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        println!("{}", line.unwrap());
    }
    child.wait().unwrap();
}

fn framed(request: &DeltaDiscoveryRequest) -> Bytes {
    let message = request.encode_to_vec();
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    framed.into()
}

async fn proxies(count: usize, held: usize, port: u16, root: String) {
    let first = |type_url: &str, held: usize| {
        let told = (0..held).map(|n| workload(n, 0)).map(|(name, resource)| (name, resource.version().to_owned()));
        framed(&DeltaDiscoveryRequest {
            node: Some(Node { id: "ztunnel~1.1.1.1~proxy.~x".to_owned(), ..Node::default() }),
            type_url: type_url.to_owned(),
            initial_resource_versions: told.collect(),
            ..Default::default()
        })
    };
    let first = [first(ADDRESS_TYPE, held), first(AUTHORIZATION_TYPE, 0)];
    let connector = ControlConnector::new(RootSource::Pem(root));
    let (seen, mut latencies) = mpsc::unbounded_channel();
    let places = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    for _ in 0..count {
        tokio::spawn(proxy(first.clone(), port, connector.clone(), seen.clone(), places.clone()));
    }
    // Waits until the other process says that it is done.
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await.unwrap().unwrap();
    let mut all = Vec::new();
    while let Ok(latency) = latencies.try_recv() {
        all.push(latency);
    }
    all.sort_unstable();
    let at = |part: f64| all.get((all.len() as f64 * part) as usize).copied().unwrap_or_default() as f64 / 1000.0;
    let bytes: Vec<u8> = format!(
        "published → seen, {} times: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; the proxies took {:.2?} CPU\n",
        all.len(),
        at(0.5),
        at(0.99),
        all.last().copied().unwrap_or_default() as f64 / 1000.0,
        cpu(),
    )
    .into();
    std::io::stdout().write_all(&bytes).unwrap();
    std::process::exit(0);
}

async fn proxy(
    first: [Bytes; 2],
    port: u16,
    connector: ControlConnector,
    seen: mpsc::UnboundedSender<u128>,
    places: Arc<tokio::sync::Semaphore>,
) {
    let place = places.acquire_owned().await.unwrap();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let tls = connector.connect(tcp, NAME, Duration::from_secs(60)).await.unwrap();
    let (mut requests, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20)
        .handshake(TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(connection);
    let (say, mut said) = mpsc::unbounded_channel::<Bytes>();
    first.into_iter().for_each(|request| say.send(request).unwrap());
    let body = StreamBody::new(futures_util::stream::poll_fn(move |cx| {
        said.poll_recv(cx).map(|request| Some(Ok::<_, std::convert::Infallible>(Frame::data(request?))))
    }));
    let request = http::Request::post(
        "https://control.test/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
    )
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .header("authorization", "Bearer good")
    .body(body)
    .unwrap();
    let mut body = requests.send_request(request).await.unwrap().into_body();
    let (mut reader, mut place) = (Reader::default(), Some(place));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.unwrap().into_data() else { continue };
        reader.read(&data, |response| {
            if let Some(at) = response.resources.iter().position(|byte| *byte == b'<') {
                let stamp = std::str::from_utf8(&response.resources[at + 1..at + 17]).unwrap();
                // The first state has no time of publication.
                let stamp: u128 = stamp.parse().unwrap();
                if stamp > 0 {
                    let _ = seen.send(now() - stamp);
                }
            }
            if response.type_url == ADDRESS_TYPE {
                place.take();
            }
            let answer = DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..Default::default()
            };
            let _ = say.send(framed(&answer));
        });
    }
}

/// Reads responses piece by piece and keeps only what it needs, because a thousand copies of the mesh don't fit here.
#[derive(Default)]
struct Reader {
    /// Bytes left of the message.
    message: usize,
    /// Bytes left of the current field, and the field's number.
    field: (usize, u8),
    head: Vec<u8>,
    response: Response,
}

#[derive(Default)]
struct Response {
    type_url: String,
    nonce: String,
    /// The first bytes of the field, if it is short.
    resources: Vec<u8>,
    short: bool,
}

impl Reader {
    fn read(&mut self, mut data: &[u8], mut done: impl FnMut(&Response)) {
        while let Some((&byte, rest)) = data.split_first() {
            if self.field.0 > 0 {
                let length = self.field.0.min(data.len());
                let (part, rest) = data.split_at(length);
                match self.field.1 {
                    4 => self.response.type_url.push_str(std::str::from_utf8(part).unwrap()),
                    5 => self.response.nonce.push_str(std::str::from_utf8(part).unwrap()),
                    2 if self.response.short => self.response.resources.extend_from_slice(part),
                    _ => {}
                }
                self.field.0 -= length;
                self.message -= length;
                data = rest;
            } else {
                self.head.push(byte);
                data = rest;
                if self.message == 0 {
                    if let [0, length @ ..] = &self.head[..]
                        && let Ok(length) = <[u8; 4]>::try_from(length)
                    {
                        self.message = u32::from_be_bytes(length) as usize;
                        self.response = Response { short: self.message < 64 << 10, ..Response::default() };
                        self.head.clear();
                    }
                    continue;
                }
                self.message -= 1;
                if self.head.len() > 1 && byte < 0x80 {
                    let length =
                        self.head[1..].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
                    self.field = (length, self.head[0] >> 3);
                    self.head.clear();
                }
            }
            if self.message == 0 && self.field.0 == 0 {
                done(&self.response);
            }
        }
    }
}
