//! The wires of the stage: a bridge between the nodes, a node per namespace, a pod per namespace.
//! Nothing is put into the machine's own network namespace.
//!
//! A pod hangs on its node by a point-to-point link and not by a bridge, so that every packet
//! passes the node's rules: on a bridge the answer of a neighbour would bypass the translation
//! of a service's address back.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use leno_capture::NetworkNamespace;
use leno_capture::links::{self, Route, VethOptions};
use leno_capture::pod_rules::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};

use crate::Error;
use crate::cluster::addresses::{CLUSTER_DNS, NODE_LINK, NodeAddresses, POD_GATEWAY_V6, POD_LINK, control_plane};
use crate::names::StageName;
use crate::run_dir::record::Record;

/// Bridge that joins the nodes.
const BRIDGE: &str = "nodes0";

/// Makes and removes the stage's namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Networks {
    dir: PathBuf,
    record: Arc<Record>,
    pub names: StageName,
    /// Whether the kernel has IPv6.
    pub ipv6: bool,
}

/// A namespace that is removed by [`Networks::remove`].
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub name: String,
    pub namespace: NetworkNamespace,
}

impl Networks {
    /// Namespaces are made in `dir`: `/run/netns`, or one that only our own mount namespace sees.
    pub(crate) fn new(dir: &Path, names: StageName, record: Arc<Record>) -> Self {
        Self { dir: dir.to_owned(), record, names, ipv6: false }
    }

    /// The directory of the namespaces.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the link between the nodes and finds out whether there is IPv6.
    ///
    /// # Errors
    /// If namespaces or links can't be made.
    pub(crate) fn create_fabric(&mut self) -> Result<Named, Error> {
        let named = self.create(self.names.fabric())?;
        let ns = &named.namespace;
        let attempt = || -> leno_capture::Result<bool> {
            let ipv6 = links::has_ipv6(ns)?;
            links::disable_address_detection(ns)?;
            links::disable_reverse_path_filter(ns)?;
            // It stands for the wire, on which nothing filters, and whose work would be counted as its users'.
            links::disable_bridge_filter(ns)?;
            links::create_bridge(ns, BRIDGE)?;
            links::set_up(ns, BRIDGE)?;
            let (v4, v6) = control_plane();
            links::add_address(ns, BRIDGE, v4.into(), 16)?;
            if ipv6 {
                links::add_address(ns, BRIDGE, v6.into(), 64)?;
            }
            Ok(ipv6)
        };
        match attempt() {
            Ok(ipv6) => {
                self.ipv6 = ipv6;
                Ok(named)
            }
            Err(reason) => {
                self.remove(&named);
                Err(Error::network("cannot make the link between the nodes")(reason))
            }
        }
    }

    /// Makes a node: its namespace, its link to the others, its addresses.
    ///
    /// # Errors
    /// If namespaces or links can't be made.
    pub(crate) fn create_node(&self, fabric: &Named, node: &str, own: NodeAddresses) -> Result<Named, Error> {
        let named = self.create(self.names.node(node))?;
        let ns = &named.namespace;
        let attempt = || -> leno_capture::Result<()> {
            links::disable_address_detection(ns)?;
            links::disable_reverse_path_filter(ns)?;
            let options = VethOptions::default();
            links::create_veth(ns, NODE_LINK, &fabric.namespace, node, &options)?;
            links::set_master(&fabric.namespace, node, BRIDGE)?;
            links::set_up(&fabric.namespace, node)?;
            links::set_up(ns, NODE_LINK)?;
            links::add_address(ns, NODE_LINK, own.fabric_v4().into(), 16)?;
            // On `lo` and not on a link: they belong to the node whichever link asks.
            for address in [own.gateway_v4(), CLUSTER_DNS, PROBE_SOURCE_V4] {
                links::add_address(ns, "lo", address.into(), 32)?;
            }
            if self.ipv6 {
                links::add_address(ns, NODE_LINK, own.fabric_v6().into(), 64)?;
                for address in [own.gateway_v6(), PROBE_SOURCE_V6] {
                    links::add_address(ns, "lo", address.into(), 128)?;
                }
            }
            links::enable_forwarding(ns)
        };
        self.keep(named.clone(), attempt(), &format!("cannot make node {node}"))
    }

    /// Tells a node how to reach the pods of another.
    ///
    /// # Errors
    /// If the kernel refuses the route.
    pub(crate) fn connect_nodes(&self, node: &Named, other: NodeAddresses) -> Result<(), Error> {
        let attempt = || -> leno_capture::Result<()> {
            let (net, length) = other.pods_v4();
            links::add_route(&node.namespace, &Route::to(network(net.into(), length)).via(other.fabric_v4().into()))?;
            if self.ipv6 {
                let (net, length) = other.pods_v6();
                links::add_route(
                    &node.namespace,
                    &Route::to(network(net.into(), length)).via(other.fabric_v6().into()),
                )?;
            }
            Ok(())
        };
        attempt().map_err(Error::network(format!("cannot route from {} to another node", node.name)))
    }

    /// Makes a pod's namespace and hangs it on its node.
    ///
    /// # Errors
    /// If namespaces or links can't be made.
    pub(crate) fn create_pod(
        &self,
        node: &Named,
        node_addresses: NodeAddresses,
        slot: u8,
        namespace: &str,
        pod: &str,
    ) -> Result<Named, Error> {
        let named = self.create(self.names.pod(namespace, pod))?;
        let ns = &named.namespace;
        let attempt = || -> leno_capture::Result<()> {
            links::disable_address_detection(ns)?;
            links::disable_reverse_path_filter(ns)?;
            allow_ping(ns)?;
            let port = node_port(slot);
            // A slot's former pod may have died without taking its link along.
            links::delete_link(&node.namespace, &port)?;
            links::create_veth(ns, POD_LINK, &node.namespace, &port, &VethOptions::default())?;
            links::set_up(&node.namespace, &port)?;
            links::set_up(ns, POD_LINK)?;

            let (v4, gateway) = (IpAddr::from(node_addresses.pod_v4(slot)), node_addresses.gateway_v4().into());
            links::add_address(ns, POD_LINK, v4, 32)?;
            links::add_route(ns, &Route::host(gateway).device(POD_LINK))?;
            links::add_route(ns, &Route::default_v4().via(gateway).device(POD_LINK).source(v4))?;
            links::add_route(&node.namespace, &Route::host(v4).device(&port).source(gateway))?;
            if self.ipv6 {
                let v6 = IpAddr::from(node_addresses.pod_v6(slot));
                let own = node_addresses.gateway_v6().into();
                links::add_address(&node.namespace, &port, POD_GATEWAY_V6.into(), 64)?;
                links::add_address(ns, POD_LINK, v6, 128)?;
                links::add_route(ns, &Route::default_v6().via(POD_GATEWAY_V6.into()).device(POD_LINK).source(v6))?;
                links::add_route(&node.namespace, &Route::host(v6).device(&port).source(own))?;
            }
            Ok(())
        };
        self.keep(named.clone(), attempt(), &format!("cannot make the network of pod {namespace}/{pod}"))
    }

    /// Removes a pod's link at once, so that its slot can be used again.
    pub(crate) fn disconnect_pod(&self, node: &Named, slot: u8) {
        if let Err(reason) = links::delete_link(&node.namespace, &node_port(slot)) {
            tracing::debug!(%reason, "a pod's link was not removed");
        }
    }

    /// Removes a namespace's name; it is gone when its last process is.
    pub(crate) fn remove(&self, named: &Named) {
        match NetworkNamespace::delete_recorded(&self.dir, &named.name, Some(&named.namespace)) {
            Ok(true) => self.record.remove(&named.name),
            Ok(false) => tracing::warn!(name = named.name, "somebody else has this network namespace's name; it stays"),
            Err(reason) => tracing::warn!(%reason, "a network namespace stays; `leno down` removes it"),
        }
    }

    fn create(&self, name: String) -> Result<Named, Error> {
        let record = |made: &NetworkNamespace| self.record.add(&name, made).map_err(std::io::Error::other);
        match NetworkNamespace::create_recorded(&self.dir, &name, record) {
            Ok(namespace) => Ok(Named { name, namespace }),
            Err(reason) if reason.errno() == Some(libc::EEXIST) => Err(Error::Refused(format!(
                "there is a network namespace {name} that this stage did not make: if nobody needs it, remove it with \
                 `ip netns delete {name}`, or choose another --name"
            ))),
            Err(reason) => Err(Error::network(format!("cannot make the network namespace {name}"))(reason)),
        }
    }

    fn keep(&self, named: Named, made: leno_capture::Result<()>, what: &str) -> Result<Named, Error> {
        match made {
            Ok(()) => Ok(named),
            Err(reason) => {
                self.remove(&named);
                Err(Error::network(what)(reason))
            }
        }
    }
}

/// Lets programs without rights send echo requests (icmp(7)): a pod has no raw sockets.
fn allow_ping(namespace: &NetworkNamespace) -> leno_capture::Result<()> {
    namespace.run(|| {
        let setting = "/proc/sys/net/ipv4/ping_group_range";
        // An ordinary user's namespace has one group. Without the setting there is no ping, and no harm.
        let _ = std::fs::write(setting, "0 2147483647").or_else(|_| std::fs::write(setting, "0 0"));
    })
}

/// Name of the node's end of a pod's link.
fn node_port(slot: u8) -> String {
    format!("pod{slot}")
}

fn network(address: IpAddr, length: u8) -> IpNet {
    // The lengths are the constants of `addresses`, which fit their families.
    IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address))
}
