//! Finding a running pod's network namespace: by the control groups of the node's processes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use leno_capture::{Gate, NamespaceId, NetworkNamespace, links};
use tokio::sync::Mutex;

use crate::cgroup;

/// Finds pods' namespaces. Clones share what was found.
#[derive(Debug, Clone)]
pub(crate) struct Finder {
    proc: PathBuf,
    /// The node's own namespace, which pods with `hostNetwork` are in.
    host: NamespaceId,
    gate: Gate,
    last: Arc<Mutex<Option<Scan>>>,
}

/// The processes of all pods, at one time; of each pod, the first to start first.
#[derive(Debug, Clone)]
struct Scan {
    begun: Instant,
    pods: Arc<HashMap<String, Vec<Process>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// When it started, in ticks since the machine did.
    started: u64,
    pid: u32,
}

impl Finder {
    /// For the node whose processes are in `proc`.
    pub(crate) fn new(proc: PathBuf, host: NamespaceId, gate: Gate) -> Self {
        Self { proc, host, gate, last: Arc::default() }
    }

    /// The namespace of the pod with this uid, which has one of these addresses; `None` if it has no process (yet).
    /// Those who ask at the same time share one look at all processes.
    pub(crate) async fn find(&self, uid: &str, addresses: &[IpAddr]) -> Option<NetworkNamespace> {
        let scan = self.scan(Instant::now()).await?;
        self.find_in(scan, uid, addresses).await
    }

    async fn find_in(&self, scan: Scan, uid: &str, addresses: &[IpAddr]) -> Option<NetworkNamespace> {
        let (finder, uid, addresses) = (self.clone(), uid.to_owned(), addresses.to_vec());
        let open = move || finder.open(&uid, scan.pods.get(&uid)?, &addresses);
        self.gate.run(open).await.ok().flatten()
    }

    /// As [`Self::find`], with the last look at all processes.
    pub(crate) async fn find_again(&self, uid: &str, addresses: &[IpAddr]) -> Option<NetworkNamespace> {
        let last = self.last.lock().await.clone();
        self.find_in(last?, uid, addresses).await
    }

    /// The namespaces of all pods that have processes.
    pub(crate) async fn namespaces(&self) -> Vec<NetworkNamespace> {
        let Some(scan) = self.scan(Instant::now()).await else { return Vec::new() };
        let finder = self.clone();
        let open = move || {
            let each = scan.pods.iter().filter_map(|(uid, processes)| finder.open(uid, processes, &[]));
            each.collect()
        };
        self.gate.run(open).await.unwrap_or_default()
    }

    /// The uids of the pods that have processes.
    pub(crate) async fn pods(&self) -> HashSet<String> {
        self.scan(Instant::now()).await.map(|scan| scan.pods.keys().cloned().collect()).unwrap_or_default()
    }

    /// A scan that began no sooner than `since`.
    async fn scan(&self, since: Instant) -> Option<Scan> {
        let mut last = self.last.lock().await;
        if let Some(scan) = last.as_ref().filter(|scan| scan.begun >= since) {
            return Some(scan.clone());
        }
        let (proc, begun) = (self.proc.clone(), Instant::now());
        let pods = self.gate.run(move || scan(&proc)).await.ok()?;
        let scan = Scan { begun, pods: Arc::new(pods) };
        *last = Some(scan.clone());
        Some(scan)
    }

    /// The first process of a pod is the one that holds its namespace. Others may have left it for one of their own.
    fn open(&self, uid: &str, processes: &[Process], addresses: &[IpAddr]) -> Option<NetworkNamespace> {
        processes.iter().find_map(|process| {
            let dir = self.proc.join(process.pid.to_string());
            let namespace = NetworkNamespace::from_path(dir.join("ns/net")).ok()?;
            if namespace.id() == self.host {
                return None;
            }
            // It may have ended meanwhile, and another have got its number.
            if read(&dir)? != (uid.to_owned(), *process) {
                return None;
            }
            let found = links::list_addresses(&namespace).ok()?;
            let fits = addresses.is_empty() || found.iter().any(|own| addresses.contains(&own.address));
            if !fits {
                tracing::debug!(uid, %namespace, "a process of the pod is in a namespace that has not the pod's address");
            }
            fits.then_some(namespace)
        })
    }
}

fn scan(proc: &Path) -> HashMap<String, Vec<Process>> {
    let mut pods: HashMap<String, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        if let Some((uid, process)) = read(&entry.path()) {
            pods.entry(uid).or_default().push(process);
        }
    }
    pods.values_mut().for_each(|processes| processes.sort_unstable());
    pods
}

/// The pod of a process, and the process.
fn read(dir: &Path) -> Option<(String, Process)> {
    let pid = dir.file_name()?.to_str()?.parse().ok()?;
    let uid = cgroup::pod_uid(&fs::read_to_string(dir.join("cgroup")).ok()?)?;
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name before it may hold blanks and brackets; the start is the 22nd field, and the 3rd comes first behind the name.
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some((uid, Process { started, pid }))
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
