//! A large mesh: what receiving all of it costs, and what a reconnect to the control plane costs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_model::{Service, TunnelProtocol, Workload};
use leno_testkit::control_plane::ControlPlane;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::process::Process;
use crate::size::Size;
use crate::support::{eventually, unchunked};
use crate::{ALONE, WITHIN};

/// How much more memory than before may be left.
const MOST: f64 = 1.1;

/// A connection to the control plane that can be cut, and that counts the received bytes.
struct Way {
    address: SocketAddr,
    cut: watch::Sender<()>,
    received: Arc<AtomicUsize>,
    /// How often a proxy connected.
    met: Arc<AtomicUsize>,
}

impl Way {
    async fn to(control: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, received) = (watch::Sender::default(), Arc::new(AtomicUsize::new(0)));
        let (cuts, counter): (watch::Sender<()>, _) = (cut.clone(), received.clone());
        let met = Arc::new(AtomicUsize::new(0));
        let meeting = met.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                meeting.fetch_add(1, Ordering::Relaxed);
                let (mut cut, counter) = (cuts.subscribe(), counter.clone());
                tokio::spawn(async move {
                    let far = TcpStream::connect(control).await.unwrap();
                    tokio::select! {
                        _ = carry(near, far, &counter) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, cut, received, met }
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, received: &AtomicUsize) -> std::io::Result<()> {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.split(), far.split());
    let down = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = far_in.read(&mut buffer).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            received.fetch_add(length, Ordering::Relaxed);
            near_out.write_all(&buffer[..length]).await?;
        }
    };
    tokio::select! {
        ended = down => ended,
        ended = tokio::io::copy(&mut near_in, &mut far_out) => ended.map(|_| ()),
    }
}

pub(crate) fn service(number: usize) -> Service {
    Service::new("ns-0", format!("svc-{number}"), format!("svc-{number}.ns-0.svc.cluster.local"))
}

pub(crate) fn workload(number: usize, service: &Service) -> Workload {
    let name = format!("svc-{}-abcdef1234-{number:05}", number % 500);
    let mut workload = Workload::new(format!("Kubernetes//Pod/ns-0/{name}"), "ns-0", name);
    let [_, a, b, c] = (number as u32).to_be_bytes();
    workload.addresses = vec![[10, a, b, c].into()];
    workload.tunnel_protocol = TunnelProtocol::Hbone;
    workload.node = format!("node-{}", number % 100).into();
    workload.canonical_name = format!("svc-{}", number % 500).into();
    workload.workload_name = workload.canonical_name.clone();
    workload.service_account = workload.canonical_name.clone();
    workload.services.insert(service.id.clone(), Vec::new());
    workload
}

async fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Gets the dump, and the longest that readiness took meanwhile.
async fn dump_beside_readiness(admin: u16, readiness: u16) -> (String, Duration, Duration) {
    let begun = Instant::now();
    let mut dump = tokio::spawn(get(admin, "/config_dump"));
    let mut worst = Duration::ZERO;
    loop {
        let asked = Instant::now();
        tokio::select! {
            answer = &mut dump => return (answer.unwrap().unwrap(), begun.elapsed(), worst.max(asked.elapsed())),
            answer = get(readiness, "/healthz/ready") => drop(answer.unwrap()),
        }
        worst = worst.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Memory once it has not changed for longer than a proxy waits before it gives back.
async fn settled(proxy: &Process) -> usize {
    let mut last = (proxy.memory().anonymous, Instant::now());
    let begun = Instant::now();
    while last.1.elapsed() < Duration::from_secs(5) && begun.elapsed() < WITHIN {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = proxy.memory().anonymous;
        if now.abs_diff(last.0) > 64 << 10 {
            last = (now, Instant::now());
        }
    }
    proxy.memory().anonymous
}

async fn comes_back(what: &str, proxy: &Process, before: usize) {
    let most = (before as f64 * MOST) as usize;
    let begun = Instant::now();
    println!("right after {what}: {} KiB, before {} KiB", proxy.memory().anonymous >> 10, before >> 10);
    while proxy.memory().anonymous > most {
        assert!(begun.elapsed() < WITHIN, "{} KiB are left of {what}", (proxy.memory().anonymous - before) >> 10);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{:?} later: {} KiB", begun.elapsed(), proxy.memory().anonymous >> 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_mesh_is_told_and_met_again_at_no_lasting_cost() {
    let _alone = ALONE.lock().await;
    large_mesh(Size::of_this_run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn a_large_meshs_dump_keeps_no_probe_waiting() {
    let _alone = ALONE.lock().await;
    large_mesh(Size { measured: true, ..Size::of_this_run() }).await;
}

async fn large_mesh(size: Size) {
    let control = ControlPlane::start().await;
    let services: Vec<Service> = (0..size.workloads / 100).map(service).collect();
    services.iter().for_each(|service| control.publish_service(service));
    let workloads: Vec<Workload> =
        (0..size.workloads).map(|number| workload(number, &services[number % services.len()])).collect();
    control.publish_workloads(&workloads);
    let way = Way::to(control.address()).await;
    let directory = tempfile::tempdir().unwrap();
    // The port was free a moment ago.
    let ports = [0; 3].map(|_: u16| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = ports.map(|listener| listener.local_addr().unwrap().port());
    let [admin, _, readiness] = ports;
    let socket = directory.path().join("nobody.sock");
    let proxy = Process::proxy_at("node-none", &socket, &control, way.address, ports, &size);
    control.synced(1).await;
    let before = settled(&proxy).await;

    let mut quick = false;
    for _ in 0..5 {
        let (answer, took, worst) = dump_beside_readiness(admin, readiness).await;
        println!("{} bytes in {took:?}, readiness within {worst:?}", answer.len());
        let dump: serde_json::Value = serde_json::from_str(&unchunked(&answer)).unwrap();
        assert_eq!(dump["workloads"].as_array().unwrap().len(), size.workloads);
        // What waits for the dump to be made waits for most of it. This machine may do something else, too.
        quick |= worst < took / 4;
    }
    assert!(quick || !size.measured, "readiness waits for the dump");
    comes_back("the dumps", &proxy, before).await;

    let first = way.received.swap(0, Ordering::Relaxed);
    let met = way.met.load(Ordering::Relaxed);
    way.cut.send_replace(());
    eventually("a second meeting", || way.met.load(Ordering::Relaxed) > met).await;
    control.publish_workload(&Workload { capacity: 2, ..workloads[0].clone() });
    control.synced(1).await;
    let again = way.received.load(Ordering::Relaxed);
    println!("{first} bytes at first, {again} at the second meeting");
    assert!(again * 10 < first, "{again} of {first} bytes came again");
    comes_back("the second meeting", &proxy, before).await;
}
