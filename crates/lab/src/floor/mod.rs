//! The floor: the cost of two relays that only copy bytes.
//!
//! The relays are where node proxies are, with the same rules in the pods, the same two hops and the same addresses,
//! but without encryption, framing, policy, log and metrics. What a mesh costs above this is its own work. The floor
//! takes its pods from the node agent like every node proxy, and serves connections between them only: no DNS, nothing
//! to or from outside.
//!
//! There is one thread per core with its own event loop and its own listeners, one task per connection, and one buffer
//! per thread. An idle connection holds no buffer.

mod relay;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use leno_capture::pod_rules::{OUTBOUND_PORT, TUNNEL_PORT};
use leno_capture::sockets::{ListenOptions, listen_wildcard};
use leno_capture::zds::{Client, ClientStatus, DEFAULT_SOCKET, PodHandler, PodInfo};
use leno_capture::{NamespaceId, NetworkNamespace, ShortPath};
use leno_model::ports;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;

use self::relay::Place;
use crate::Error;

/// The process `leno lab-floor`: takes the settings of a node proxy from its environment and runs until it is killed.
pub fn floor_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the floor ends");
            // Such a small process has no logging.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    crate::load::raise_descriptor_limit();
    let socket = std::env::var_os("INPOD_UDS").map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("cannot start a runtime"))?;
    let workers: Vec<_> = (0..workers)
        .map(|_| {
            let (give, pods) = mpsc::unbounded_channel();
            std::thread::spawn(move || work(pods));
            give
        })
        .collect();
    runtime.block_on(async move {
        let client = Client::new(socket);
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ports::READINESS));
        let listener = TcpListener::bind(address).await.map_err(Error::io(format!("cannot listen on {address}")))?;
        tokio::spawn(answer_readiness(listener, client.status()));
        let pods = Pods { workers, known: Mutex::default() };
        match client.run(&pods).await {}
    })
}

/// A message to a worker.
enum Order {
    Serve { uid: String, place: Place, outbound: std::net::TcpListener, inbound: std::net::TcpListener },
    Leave { uid: String },
}

/// The node agent's pods.
struct Pods {
    workers: Vec<mpsc::UnboundedSender<Order>>,
    known: Mutex<HashMap<String, NamespaceId>>,
}

impl Pods {
    fn leave(&self, uid: &str) {
        for worker in &self.workers {
            // A worker ends only with the process.
            let _ = worker.send(Order::Leave { uid: uid.to_owned() });
        }
    }
}

impl PodHandler for Pods {
    async fn add(&self, pod: PodInfo, namespace: NetworkNamespace) -> Result<(), String> {
        let mut known = self.known.lock().await;
        if known.get(&pod.uid) == Some(&namespace.id()) {
            return Ok(());
        }
        self.leave(&pod.uid);
        let path = ShortPath::of(&namespace).map_err(|error| error.to_string())?;
        let place = Place { namespace, path };
        let with_path = |options| ListenOptions { path: place.path.clone(), ..options };
        for worker in &self.workers {
            let listen = |port, options| {
                listen_wildcard(&place.namespace, port, &with_path(options))
                    .map(|listener| listener.socket)
                    .map_err(|error| error.to_string())
            };
            let (outbound, inbound) =
                (listen(OUTBOUND_PORT, ListenOptions::for_programs())?, listen(TUNNEL_PORT, ListenOptions::default())?);
            let order = Order::Serve { uid: pod.uid.clone(), place: place.clone(), outbound, inbound };
            worker.send(order).map_err(|_| "a worker ended".to_owned())?;
        }
        known.insert(pod.uid, place.namespace.id());
        Ok(())
    }

    async fn remove(&self, uid: &str) {
        if self.known.lock().await.remove(uid).is_some() {
            self.leave(uid);
        }
    }

    async fn retain(&self, uids: HashSet<String>) {
        self.known.lock().await.retain(|uid, _| {
            let keep = uids.contains(uid);
            if !keep {
                self.leave(uid);
            }
            keep
        });
    }
}

/// One worker thread.
fn work(mut orders: mpsc::UnboundedReceiver<Order>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut pods: HashMap<String, [JoinHandle<()>; 2]> = HashMap::new();
        while let Some(order) = orders.recv().await {
            match order {
                Order::Serve { uid, place, outbound, inbound } => {
                    let tasks = [
                        tokio::task::spawn_local(relay::outbound(TcpListener::from_std(outbound)?, place.clone())),
                        tokio::task::spawn_local(relay::inbound(TcpListener::from_std(inbound)?, place)),
                    ];
                    pods.insert(uid, tasks);
                }
                Order::Leave { uid } => {
                    for task in pods.remove(&uid).into_iter().flatten() {
                        task.abort();
                    }
                }
            }
        }
        Ok(())
    })
}

/// Ready once the agent has named every pod.
pub(crate) async fn answer_readiness(listener: TcpListener, status: watch::Receiver<ClientStatus>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = [0; 1024];
        let answer: &[u8] = if status.borrow().synced {
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        } else {
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        };
        tokio::spawn(async move {
            if stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                // The prober has closed. It will ask again.
                let _ = stream.write_all(answer).await;
            }
        });
    }
}
