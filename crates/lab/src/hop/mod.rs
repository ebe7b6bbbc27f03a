//! One hop: a proxy between a client and a server, as it costs by itself. [`setting`] says what a proxy is told to do, and
//! one module for each program says it in that program's words.

mod envoy;
mod haproxy;
mod setting;
mod traefik;

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_model::Identity;
use leno_tls::{CaOptions, CertificateAuthority, certificate_request};
use tokio::process::{Child, Command};

use crate::load::Protocol;
use crate::pem::private_key;
use crate::scenario::Hop;
use setting::{Certificates, Setting, Side, Start};

/// The port of every proxy. Traefik's metrics have the next one.
const PORT: u16 = 9080;
/// For a proxy to listen.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
const TRUST_DOMAIN: &str = "lab.example";
const VALID: Duration = Duration::from_secs(24 * 60 * 60);

/// A program that can be a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer<'a> {
    Envoy(&'a Path),
    Haproxy(&'a Path),
    Traefik(&'a Path),
}

impl Peer<'_> {
    fn program(&self) -> &Path {
        let (Self::Envoy(path) | Self::Haproxy(path) | Self::Traefik(path)) = self;
        path
    }

    fn start(&self, setting: &Setting<'_>) -> Start {
        match self {
            Self::Envoy(_) => envoy::start(setting),
            Self::Haproxy(_) => haproxy::start(setting),
            Self::Traefik(_) => traefik::start(setting),
        }
    }
}

/// Where a proxy runs: a pod's network namespace.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) namespace: NetworkNamespace,
    pub(crate) address: IpAddr,
}

/// Running proxies of a hop, the client's first. Dropping them kills them.
pub(crate) struct Proxies {
    running: Vec<(&'static str, Child)>,
    /// Where the client connects.
    pub(crate) address: SocketAddr,
}

impl Proxies {
    /// Starts `peer` in each of `places`, which are one, or two for a pair. The last one's next is `server`. Files are in
    /// `directory`, and logs beside it.
    ///
    /// # Errors
    /// What could not be started, as a text for people.
    pub(crate) async fn start(
        peer: Peer<'_>,
        hop: Hop,
        protocol: Protocol,
        places: Vec<Place>,
        server: SocketAddr,
        directory: &Path,
    ) -> Result<Self, String> {
        let failed = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
        std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        let certificates = certificates(directory)?;
        let addresses: Vec<SocketAddr> = places.iter().map(|place| (place.address, PORT).into()).collect();
        let address = *addresses.first().ok_or("there is no place for it")?;
        let mut proxies = Self { running: Vec::new(), address };
        // The last one first, so that the one before finds it.
        for (index, place) in places.iter().enumerate().rev() {
            let side = match (places.len(), index) {
                (1, _) => Side::Only,
                (_, 0) => Side::First,
                _ => Side::Second,
            };
            let own = directory.join(place.name);
            std::fs::create_dir_all(&own).map_err(|error| failed(&own, error))?;
            let setting = Setting {
                hop,
                side,
                protocol,
                listen: addresses[index],
                next: addresses.get(index + 1).copied().unwrap_or(server),
                certificates: &certificates,
                directory: own,
            };
            let log = log_file(directory, place.name);
            let child = spawn(peer, &setting, place, &log)?;
            proxies.running.push((place.name, child));
            proxies.listens(place, setting.listen).await?;
        }
        proxies.running.reverse();
        Ok(proxies)
    }

    /// Names and process ids, the client's first.
    pub(crate) fn processes(&self) -> Vec<(String, i32)> {
        let pid = |child: &Child| child.id().and_then(|pid| i32::try_from(pid).ok());
        self.running.iter().filter_map(|(name, child)| Some(((*name).to_owned(), pid(child)?))).collect()
    }

    /// Ends them.
    pub(crate) async fn stop(mut self) {
        for (_, child) in &mut self.running {
            // One that has ended already is what is wanted.
            let _ = child.kill().await;
        }
    }

    /// Waits until the last one that was started takes connections.
    async fn listens(&mut self, place: &Place, address: SocketAddr) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let connected = place.namespace.run(|| TcpStream::connect_timeout(&address, LOOK).is_ok());
            if connected.map_err(|error| error.to_string())? {
                return Ok(());
            }
            if let Some((name, child)) = self.running.last_mut()
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!("the proxy of {name} ended at once ({status})"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("the proxy does not listen at {address} after {} s", PATIENCE.as_secs()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The log of the proxy in a place.
pub(crate) fn log_file(directory: &Path, place: &str) -> PathBuf {
    directory.join(format!("{place}.log"))
}

fn spawn(peer: Peer<'_>, setting: &Setting<'_>, place: &Place, log: &Path) -> Result<Child, String> {
    let start = peer.start(setting);
    for (name, content) in &start.files {
        let path = setting.directory.join(name);
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let text = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(log).map_err(text)?;
    let errors = output.try_clone().map_err(text)?;
    let mut command = Command::new(peer.program());
    command.args(&start.arguments).envs(start.environment).current_dir(&setting.directory);
    command.stdin(Stdio::null()).stdout(output).stderr(errors).kill_on_drop(true);
    crate::child::tie(command.as_std_mut());
    let spawned = place.namespace.run(|| command.spawn()).map_err(|error| error.to_string())?;
    spawned.map_err(|error| format!("{}: {error}", peer.program().display()))
}

/// Certificates that live as long as `directory`.
fn certificates(directory: &Path) -> Result<Certificates, String> {
    let path = |name: &str| directory.join(name);
    let found =
        Certificates { chain: path("chain.pem"), key: path("key.pem"), root: path("root.pem"), both: path("both.pem") };
    if found.both.exists() {
        return Ok(found);
    }
    let make = || -> Result<[String; 3], Box<dyn std::error::Error>> {
        let authority = CertificateAuthority::ephemeral(TRUST_DOMAIN, CaOptions::default())?;
        let identity = Identity::new(TRUST_DOMAIN, "lab", "hop")?;
        let (key, request) = certificate_request(&identity)?;
        let chain = authority.sign(&request, &identity, VALID)?;
        let key = key.secret_pkcs8_der().ok_or("the key can't be written")?;
        // The last one is the root, which peers already have.
        let without_root = chain[..chain.len().saturating_sub(1)].concat();
        Ok([without_root, private_key(key), authority.root_pem()])
    };
    let [chain, key, root] = make().map_err(|error| format!("cannot make certificates: {error}"))?;
    for (path, content) in
        [(&found.chain, &chain), (&found.key, &key), (&found.root, &root), (&found.both, &format!("{chain}{key}"))]
    {
        std::fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(found)
}

#[cfg(test)]
#[path = "hop_tests.rs"]
mod tests;
