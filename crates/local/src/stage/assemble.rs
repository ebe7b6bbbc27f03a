//! Putting a stage together from its options.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_capture::zds::Agent;
use leno_capture::{Gate, NAMED_DIR};
use leno_model::ports;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;

use crate::Error;
use crate::cluster::addresses::{MAX_NODES, NodeAddresses, control_plane};
use crate::files::watch::Watcher;
use crate::files::{self, Manifests};
use crate::run_dir::record::Record;
use crate::run_dir::{make_dir, write_file};
use crate::stage::context::Context;
use crate::stage::core::Core;
use crate::stage::give_up::GiveUp;
use crate::stage::handle::StageHandle;
use crate::stage::journal::Journal;
use crate::stage::listing::Listing;
use crate::stage::network::{Named, Networks};
use crate::stage::node::{Node, ServiceRules, serve_dns};
use crate::stage::options::StageOptions;
use crate::stage::plane::Plane;
use crate::stage::proxy::{Orders, ProxySettings, ProxyState, inherited, supervise};
use crate::stage::publish::{self, Door, Published};
use crate::stage::request::Request;
use crate::stage::tasks::Tasks;

/// What `assemble` has made, before it is complete.
pub(crate) struct Parts {
    pub handle: StageHandle,
    pub nodes: Vec<Arc<Node>>,
    pub fabric: Named,
    pub core: JoinHandle<()>,
    pub proxies: Vec<JoinHandle<()>>,
    pub stop_proxies: watch::Sender<bool>,
    pub tasks: Tasks,
}

/// Where a stage is made, and where that is written down.
pub(crate) struct Places<'a> {
    pub run_dir: &'a Path,
    pub netns_dir: &'a Path,
    pub record: Arc<Record>,
    pub journal: Journal,
}

/// Makes everything. No process is started before all that can fail is done, so that a failure leaves nothing that moves.
pub(crate) async fn assemble(
    options: &StageOptions,
    names: Vec<String>,
    files: Manifests,
    places: Places<'_>,
    stop: &GiveUp,
) -> Result<Parts, Error> {
    let Places { run_dir, netns_dir, record, journal } = places;
    let this = std::env::current_exe().map_err(Error::io("cannot find this program's own file"))?;
    let executable = options.executable.clone().unwrap_or_else(|| this.clone());
    let cluster_domain: Arc<str> = options.cluster_domain.as_str().into();
    let mut networks = Networks::new(netns_dir, options.name.clone(), record);
    let fabric = networks.create_fabric()?;
    let (ports, declared) = watch::channel(Arc::default());
    let (stop_proxies, stopped) = watch::channel(false);
    let (mut nodes, mut exchanges): (Vec<Arc<Node>>, _) = (Vec::new(), BTreeMap::new());
    let (mut tasks, mut planned, mut in_force) = (Tasks::default(), Vec::new(), Vec::new());
    let plane = Plane::start(options, &fabric, run_dir, networks.ipv6, &mut tasks)?;

    for (index, name) in names.iter().enumerate() {
        stop.check().await?;
        let addresses = NodeAddresses::new(index + 1)
            .ok_or_else(|| Error::NotFound(format!("--nodes must be from 1 to {MAX_NODES}")))?;
        let network = networks.create_node(&fabric, name, addresses)?;
        tasks.spawn(serve_dns(&network, plane.mesh(), cluster_domain.clone())?);
        let (force, forced) = watch::channel(Arc::default());
        in_force.push(forced);
        let rules = ServiceRules {
            name: name.clone(),
            network: network.clone(),
            addresses,
            mesh: plane.mesh(),
            ports: declared.clone(),
            proxies: plane.proxies(),
            in_force: force,
        };
        tasks.spawn(rules.keep());

        let dir = make_dir(&run_dir.join(name))?;
        let socket = dir.join("ztunnel.sock");
        let agent =
            Agent::bind(&socket).map_err(Error::network(format!("cannot announce pods to the proxy of {name}")))?;
        let domain = &options.cluster_domain;
        let resolv = format!(
            "nameserver {}\nsearch svc.{domain} {domain}\noptions ndots:5\n",
            crate::cluster::addresses::CLUSTER_DNS
        );
        write_file(&dir.join("resolv.conf"), resolv.as_bytes(), 0o644)?;
        let token = dir.join("token");
        write_file(&token, plane.token(name)?.as_bytes(), 0o600)?;
        let program = options.proxies.get(name).cloned().or_else(|| options.default_proxy.clone());
        let settings = ProxySettings {
            program: program.unwrap_or_else(|| this.clone()),
            node: name.clone(),
            namespace: network.namespace.clone(),
            node_ip: IpAddr::from(addresses.fabric_v4()),
            control: SocketAddr::new(control_plane().0.into(), ports::CONTROL),
            root_cert: run_dir.join(crate::stage::plane::ROOT_CERT),
            token,
            zds_socket: socket,
            resolv_conf: dir.join("resolv.conf"),
            log: dir.join("proxy.log"),
            trust_domain: options.trust_domain.clone(),
            cluster_domain: options.cluster_domain.clone(),
            ipv6: networks.ipv6,
            inherited: inherited(std::env::vars()),
            journal: journal.clone(),
        };
        let (state, proxy) = watch::channel(ProxyState::default());
        let (upgrades, ordered) = mpsc::channel(1);
        exchanges.insert(name.clone(), upgrades);
        let orders = Orders { departures: agent.departures(), upgrades: ordered, stop: stopped.clone() };
        planned.push((settings, orders, state));
        nodes.push(Arc::new(Node { name: name.clone(), addresses, network, agent, proxy }));
    }
    for node in &nodes {
        stop.check().await?;
        for other in nodes.iter().filter(|other| other.name != node.name) {
            networks.connect_nodes(&node.network, other.addresses)?;
        }
        // Waypoints are pods, and talk to the control plane.
        networks.connect_nodes(&fabric, node.addresses)?;
    }

    let (news, _) = broadcast::channel(1024);
    if !networks.ipv6 {
        tracing::warn!("this kernel has no IPv6; the stage is IPv4 only");
    }
    let programs = executable.parent().unwrap_or(Path::new("/")).to_owned();
    let started_in = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let nsswitch = nsswitch(run_dir)?;
    let watched: Vec<_> = options.manifests.iter().filter(|path| *path != Path::new("-")).cloned().collect();
    let mut watcher = None;
    if options.watch && watched.len() == options.manifests.len() && !watched.is_empty() {
        let new = Watcher::new()?;
        new.cover(&watched)?;
        watcher = Some(new);
    }
    let socket = crate::stage::server::bind(run_dir)?;
    stop.check().await?;
    let ctx = Arc::new(Context {
        networks,
        journal,
        plane,
        executable,
        programs,
        started_in,
        run_dir: run_dir.to_owned(),
        cluster_domain,
        nsswitch,
        gate: Gate::default(),
        in_force,
        config: Mutex::default(),
    });
    let listing = Listing {
        stage: options.name.as_str().to_owned(),
        supervisor: std::process::id(),
        published: options.published.iter().map(Published::listing).collect(),
        ..Listing::default()
    };
    open_doors(&options.published, &nodes, &ctx, &mut tasks);
    let (show, shown) = watch::channel(listing.clone());
    let (public, listing) = watch::channel(listing);
    tasks.spawn(show_what_is_in_force(shown, public, ctx.clone()));
    let (requests, asked) = mpsc::channel(64);
    let (events, happened) = mpsc::unbounded_channel();
    let core = Core::new(ctx.clone(), nodes.clone(), events, ports, show, news.clone());
    let core = tokio::spawn(core.run(asked, happened));
    let down = Arc::new(watch::channel(false).0);
    let exchanges = Arc::new(exchanges);
    let handle = StageHandle { requests: requests.clone(), listing, news, down, exchanges, ctx };
    let _ = requests.send(Request::Reload(Ok(files))).await;

    if let Some(watcher) = watcher {
        tasks.spawn(follow(watcher, watched, requests));
    }
    tasks.spawn(crate::stage::server::serve(socket, handle.clone()));
    let proxies =
        planned.into_iter().map(|(settings, orders, state)| tokio::spawn(supervise(settings, orders, state))).collect();
    Ok(Parts { handle, nodes, fabric, core, proxies, stop_proxies, tasks })
}

/// Carries connections to published ports into the stage, through its first node.
fn open_doors(published: &[Published], nodes: &[Arc<Node>], ctx: &Arc<Context>, tasks: &mut Tasks) {
    let Some(node) = nodes.first() else { return };
    for published in published {
        let door = Door {
            node: node.name.clone(),
            namespace: node.network.namespace.clone(),
            mesh: ctx.plane.mesh(),
            cluster_domain: ctx.cluster_domain.clone(),
            journal: ctx.journal.clone(),
        };
        tasks.spawn(publish::serve(published.clone(), door));
    }
}

/// Passes a listing on once the nodes' rules and the proxies are where it is: who sees a pod ready
/// may connect to it at once.
async fn show_what_is_in_force(mut shown: watch::Receiver<Listing>, public: watch::Sender<Listing>, ctx: Arc<Context>) {
    while shown.changed().await.is_ok() {
        let listing = shown.borrow_and_update().clone();
        ctx.settled().await;
        public.send_replace(listing);
    }
}

/// Reads the files again after each change.
async fn follow(watcher: Watcher, paths: Vec<PathBuf>, requests: mpsc::Sender<Request>) {
    loop {
        if let Err(reason) = watcher.changed().await {
            tracing::error!(%reason, "edits of the manifests are no longer noticed");
            return;
        }
        if let Err(reason) = watcher.cover(&paths) {
            tracing::warn!(%reason, "some edits may go unnoticed");
        }
        let paths = paths.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || files::read(&paths)).await else { return };
        if requests.send(Request::Reload(read)).await.is_err() {
            return;
        }
    }
}

/// The directory of named network namespaces: for root the one that `ip netns` uses, otherwise one that exists only in
/// our own mount namespace.
pub(crate) fn netns_dir(run_dir: &Path) -> Result<PathBuf, Error> {
    if crate::privilege::is_machine_root() {
        return Ok(PathBuf::from(NAMED_DIR));
    }
    let dir = make_dir(&run_dir.join("netns"))?;
    let none = None::<&str>;
    nix::mount::mount(Some("tmpfs"), &dir, Some("tmpfs"), nix::mount::MsFlags::empty(), none)
        .map_err(Error::errno(format!("cannot mount a private directory at {}", dir.display())))?;
    Ok(dir)
}

pub(crate) fn remove_netns_dir(dir: &Path) {
    if !crate::privilege::is_machine_root() {
        let _ = nix::mount::umount2(dir, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A copy of the machine's `/etc/nsswitch.conf` that looks names up in files and DNS only: other
/// sources, such as systemd-resolved, would answer with the machine's names.
fn nsswitch(run_dir: &Path) -> Result<Option<PathBuf>, Error> {
    let Ok(text) = std::fs::read_to_string("/etc/nsswitch.conf") else { return Ok(None) };
    let lines =
        text.lines().map(|line| if line.trim_start().starts_with("hosts:") { "hosts: files dns" } else { line });
    let path = run_dir.join("nsswitch.conf");
    write_file(&path, (lines.collect::<Vec<_>>().join("\n") + "\n").as_bytes(), 0o644)?;
    Ok(Some(path))
}
