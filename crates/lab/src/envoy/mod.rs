//! Envoy as a node proxy: the agent for a proxy that knows neither pods nor Istio's certificates.
//!
//! This process takes the pods from the node agent, asks the control plane for their certificates, and writes both into
//! Envoy's configuration: one Envoy per node, with listeners in each pod's network namespace, as the other node proxies have
//! them. It carries nothing itself, and is not counted in what Envoy costs. Like the floor it serves connections between pods
//! only: no DNS, nothing to or from outside.
//!
//! Envoy must be able to listen in, and connect from, network namespaces: version 1.37 or later.

mod config;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use leno_capture::zds::{Client, DEFAULT_SOCKET, PodHandler, PodInfo};
use leno_capture::{NamespaceId, NetworkNamespace};
use leno_model::{Identity, ports};
use leno_tls::{Issuer as _, RootSource, certificate_request};
use leno_xds::ca_client::CaClient;
use leno_xds::{ChannelConfig, TokenSource};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

use crate::Error;
use crate::floor::answer_readiness;
use crate::pem::private_key;

/// Envoy itself is found beside the name that started this process, under that name with this ending.
pub(crate) const PROGRAM_SUFFIX: &str = ".program";
/// Files in Envoy's directory.
const ADMIN: &str = "admin.sock";
const CLUSTERS: &str = "clusters.json";
const LISTENERS: &str = "listeners.json";
const BOOTSTRAP: &str = "bootstrap.json";
/// The limit for Envoy to start or to take a new configuration. It is shorter than the lab's limit for a node proxy,
/// because the reason is known here.
const PATIENCE: Duration = Duration::from_secs(15);
/// A node agent waits 3.5 s until a pod is served.
const POD_PATIENCE: Duration = Duration::from_secs(3);
/// The pause between checks whether Envoy has applied its configuration.
const LOOKS: Duration = Duration::from_millis(20);
/// Longer than any measurement, because certificates are not replaced.
const CERTIFICATE_TTL: Duration = Duration::from_secs(24 * 3600);

/// The process. It takes the settings of a node proxy from its environment and runs until it is told to end, or Envoy
/// ends.
pub fn envoy_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Such a small process has no logging.
            let _ = io::stderr().write_fmt(format_args!("error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    crate::load::raise_descriptor_limit();
    let directory = std::env::current_dir().map_err(Error::io("cannot find the working directory"))?.join("envoy");
    // Remove what an Envoy that died has left.
    let _ = std::fs::remove_dir_all(&directory);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
    made.map_err(Error::io(format!("cannot create {}", directory.display())))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("cannot start a runtime"))?;
    runtime.block_on(serve(directory))
}

async fn serve(directory: PathBuf) -> Result<(), Error> {
    let failed = |what: &'static str| Error::io(what);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("cannot wait for signals"))?;
    let pods = Pods::new(directory)?;
    pods.write(&BTreeMap::new(), 0).map_err(failed("cannot write Envoy's configuration"))?;
    let mut envoy = start(&pods.directory)?;
    let client = Client::new(setting("INPOD_UDS").map_or_else(|_| PathBuf::from(DEFAULT_SOCKET), PathBuf::from));
    let status = client.status();
    let serving = async {
        pods.has_all(Vec::new(), PATIENCE).await.map_err(Error::Usage)?;
        let listener = tokio::net::TcpListener::bind(("0.0.0.0", ports::READINESS)).await;
        tokio::spawn(answer_readiness(listener.map_err(failed("cannot listen for questions of readiness"))?, status));
        match client.run(&pods).await {}
    };
    let outcome = tokio::select! {
        ended = envoy.wait() => {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Error::Usage(format!("Envoy ended: {how}")))
        }
        outcome = serving => outcome,
        _ = terminate.recv() => Ok(()),
    };
    // It may have ended already.
    let _ = envoy.kill().await;
    outcome
}

fn setting(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| Error::Usage(format!("{name} is not set: only a stage starts this program")))
}

/// Starts Envoy so that it does not outlive this process.
fn start(directory: &Path) -> Result<Child, Error> {
    let mut program = std::env::args_os().next().unwrap_or_default();
    program.push(PROGRAM_SUFFIX);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = std::process::Command::new(&program);
    command
        .arg("--config-path")
        .arg(directory.join(BOOTSTRAP))
        .args(["--concurrency", &cores.to_string(), "--disable-hot-restart", "--log-level", "warning"])
        .stdin(std::process::Stdio::null());
    crate::child::tie(&mut command);
    // This is the main thread, and the runtime has no other.
    let mut command = Command::from(command);
    command.kill_on_drop(true).spawn().map_err(Error::io(format!("cannot start {}", Path::new(&program).display())))
}

/// The node agent's pods.
struct Pods {
    directory: PathBuf,
    node: String,
    trust_domain: String,
    issuer: CaClient,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By uid.
    pods: BTreeMap<String, Served>,
    version: u64,
    /// Namespaces of removed pods. Their paths must stay valid until Envoy has dropped them.
    gone: Vec<OwnedFd>,
}

struct Served {
    id: NamespaceId,
    namespace: OwnedFd,
    chain: PathBuf,
    key: PathBuf,
    root: PathBuf,
    /// The common prefix of its peers' identities.
    peers: String,
}

impl Pods {
    fn new(directory: PathBuf) -> Result<Self, Error> {
        let address = setting("CA_ADDRESS")?;
        let Ok(root) = setting("CA_ROOT_CA")?.parse::<RootSource>();
        let channel = ChannelConfig {
            address: address.parse().map_err(|error| Error::Usage(format!("CA_ADDRESS is {address:?}: {error}")))?,
            root,
            alt_hostname: None,
            token: Some(TokenSource::File(setting("AUTH_TOKEN")?.into())),
            cluster_id: setting("CLUSTER_ID")?,
            headers: Vec::new(),
        };
        Ok(Self {
            directory,
            node: setting("NODE_NAME")?,
            trust_domain: setting("TRUST_DOMAIN")?,
            issuer: CaClient::new(channel),
            known: Mutex::default(),
        })
    }

    /// Requests a pod's certificate and writes it where Envoy reads it.
    async fn certify(&self, pod: &PodInfo, namespace: &NetworkNamespace) -> Result<Served, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let identity = Identity::new(&*self.trust_domain, &*pod.namespace, &*pod.service_account);
        let identity = identity.map_err(|error| text(&error))?;
        let (key, request) = certificate_request(&identity).map_err(|error| text(&error))?;
        let chain = loop {
            match self.issuer.issue(&identity, request.clone(), CERTIFICATE_TTL).await {
                Ok(chain) => break chain,
                // The control plane may learn of a new pod later than this process. The caller limits the time.
                Err(error) if error.retryable => tokio::time::sleep(LOOKS).await,
                Err(error) => return Err(text(&error)),
            }
        };
        let (Some(root), Some(key)) = (chain.last(), key.secret_pkcs8_der()) else {
            return Err("the control plane sent no certificate".to_owned());
        };
        let path = |ending: &str| self.directory.join(format!("{}.{ending}", pod.uid));
        let served = Served {
            id: namespace.id(),
            namespace: namespace.try_clone_fd().map_err(|error| text(&error))?,
            chain: path("chain.pem"),
            key: path("key.pem"),
            root: path("root.pem"),
            peers: format!("spiffe://{}/ns/{}/sa/", self.trust_domain, pod.namespace),
        };
        // The last one is the root, which peers already have.
        let without_root = &chain[..chain.len() - 1];
        for (path, content) in
            [(&served.chain, without_root.concat()), (&served.key, private_key(key)), (&served.root, root.clone())]
        {
            write(path, content.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(served)
    }

    /// Writes Envoy's configuration. Envoy notices the new files by itself.
    fn write(&self, pods: &BTreeMap<String, Served>, version: u64) -> io::Result<()> {
        let pods = pods.iter().map(|(uid, served)| config::Pod {
            uid,
            namespace: format!("/proc/{}/fd/{}", std::process::id(), served.namespace.as_raw_fd()),
            chain: &served.chain,
            key: &served.key,
            root: &served.root,
            peers: &served.peers,
        });
        let (mut clusters, mut listeners) = (Vec::new(), Vec::new());
        for pod in pods {
            clusters.extend(config::clusters(&pod));
            listeners.extend(config::listeners(&pod, &self.directory.join("access.log")));
        }
        if version == 0 {
            let bootstrap = config::bootstrap(&self.node, &self.directory);
            write(&self.directory.join(BOOTSTRAP), bootstrap.to_string().as_bytes())?;
        }
        // Clusters first: listeners name them.
        for (name, resources) in [(CLUSTERS, clusters), (LISTENERS, listeners)] {
            let resources = config::resources(version, resources).to_string();
            write(&self.directory.join(name), resources.as_bytes())?;
        }
        Ok(())
    }

    /// Waits until Envoy answers and has listeners and clusters of these names.
    async fn has_all(&self, names: Vec<String>, patience: Duration) -> Result<(), String> {
        let mut last = "it does not answer its admin interface".to_owned();
        let waiting = async {
            loop {
                match (self.ask("/listeners").await, self.ask("/clusters").await) {
                    (Ok(listeners), Ok(clusters)) => {
                        let missing = names.iter().find(|name| {
                            let known = |text: &str| text.contains(&format!("{name}::"));
                            !known(&listeners) || !known(&clusters)
                        });
                        match missing {
                            None => return,
                            Some(name) => last = format!("{name} is not there"),
                        }
                    }
                    (Err(error), _) | (_, Err(error)) => last = error.to_string(),
                }
                tokio::time::sleep(LOOKS).await;
            }
        };
        let done = tokio::time::timeout(patience, waiting).await;
        done.map_err(|_| format!("Envoy runs, but has not taken its configuration after {patience:?}: {last}"))
    }

    /// A page of Envoy's admin interface.
    async fn ask(&self, page: &str) -> io::Result<String> {
        let admin = self.directory.join(ADMIN);
        let silent = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("it does not listen at {}, its admin interface ({error})", admin.display()),
            )
        };
        let mut stream = UnixStream::connect(&admin).await.map_err(silent)?;
        let request = format!("GET {page} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    fn apply(&self, known: &mut Known) -> Result<(), String> {
        known.version += 1;
        self.write(&known.pods, known.version).map_err(|error| format!("cannot write Envoy's configuration: {error}"))
    }
}

impl PodHandler for Pods {
    async fn add(&self, pod: PodInfo, namespace: NetworkNamespace) -> Result<(), String> {
        let mut known = self.known.lock().await;
        if known.pods.get(&pod.uid).is_none_or(|served| served.id != namespace.id()) {
            let served = self.certify(&pod, &namespace).await?;
            if let Some(old) = known.pods.insert(pod.uid.clone(), served) {
                known.gone.push(old.namespace);
            }
            self.apply(&mut known)?;
        }
        self.has_all(config::names(&pod.uid).into(), POD_PATIENCE).await
    }

    async fn remove(&self, uid: &str) {
        let mut known = self.known.lock().await;
        if let Some(old) = known.pods.remove(uid) {
            known.gone.push(old.namespace);
            if let Err(error) = self.apply(&mut known) {
                tracing::warn!(error, "a pod that went is still served");
            }
        }
    }

    async fn retain(&self, uids: HashSet<String>) {
        let known: Vec<String> = self.known.lock().await.pods.keys().cloned().collect();
        for uid in known.iter().filter(|uid| !uids.contains(*uid)) {
            self.remove(uid).await;
        }
    }
}

/// Writes a file atomically, readable by its owner only, because some files hold keys.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
#[path = "envoy_tests.rs"]
mod tests;
