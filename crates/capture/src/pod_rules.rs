//! The rules inside a pod's network namespace that hand its traffic to the node proxy.
//!
//! They are those of Istio's nftables backend, with its table and chain names, so that either agent recognises, checks and
//! removes what the other one installed. How they work together:
//!
//! * New TCP connections of the pod are redirected to port 15001, those to the pod to 15006, its DNS queries to 15053. The
//!   proxy's own packets carry a mark and pass.
//! * The proxy connects to the application from the original client's address. The replies to that foreign address would leave
//!   the pod; so the connection is marked, its replies inherit the mark, and a policy route delivers marked packets locally.
//! * Address translation decides on a connection's first packet alone. Connections that exist when the rules arrive are made
//!   known to connection tracking first, and go on as they were.
//! * A redirect to a port where nobody listens is refused. So a dead proxy means refused connections, not plaintext ones; or,
//!   with [`crate::pod_hold`], such as wait for the next.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::conntrack;
use crate::error::{Error, Result};
use crate::half_closed;
use crate::links::{self, PolicyRule, Route, RouteKind};
use crate::marks::PROXY_MARK;
use crate::netns::NetworkNamespace;
use crate::nft::{self, Batch, Chain, ChainType, Content, Family, Hook, Protocol, Rule, Table};
use crate::path_mtu;

pub use crate::marks::{MARK_MASK, REPLY_MARK};
pub use crate::nft::Problem;
pub use leno_model::ports::{
    DNS as DNS_PORT, HBONE as TUNNEL_PORT, INBOUND as INBOUND_PORT, OUTBOUND as OUTBOUND_PORT,
};

/// From this address the host's own health checks arrive; they are let through untouched.
pub const PROBE_SOURCE_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// The same for IPv6.
pub const PROBE_SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff);

const NAT_TABLE: &str = "istio-ambient-nat";
const MANGLE_TABLE: &str = "istio-ambient-mangle";
const RAW_TABLE: &str = "istio-ambient-raw";
const PREROUTING: &str = "istio-prerouting";
const OUTPUT: &str = "istio-output";
/// The routing table that delivers everything locally, and where its rule stands: right before the main table (32766).
const REPLY_ROUTE_TABLE: u32 = 100;
const REPLY_RULE_PRIORITY: u32 = 32764;
const DNS: u16 = 53;
/// The proxy's own DNS queries are tracked apart, or they would be taken for replies to the redirected ones that carry the
/// same ports.
const DNS_ZONE: u16 = 1;

/// What is captured in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRules {
    /// Whether the pod's DNS queries go to the proxy.
    pub dns_capture: bool,
    /// Whether only what the pod sends is captured, and what it receives is not (`ambient.istio.io/bypass-inbound-capture`).
    pub ingress_only: bool,
    /// Whether IPv6 is captured, on kernels that have it. Without, IPv6 traffic bypasses the mesh.
    pub ipv6: bool,
    /// Source of the host's IPv4 health checks.
    pub probe_source_v4: Ipv4Addr,
    /// Source of the host's IPv6 health checks.
    pub probe_source_v6: Ipv6Addr,
    /// Interfaces whose incoming connections are treated as if the pod had made them, such as those of virtual machines in it
    /// (`istio.io/reroute-virtual-interfaces`).
    pub virtual_interfaces: Vec<String>,
}

impl Default for PodRules {
    fn default() -> Self {
        Self {
            dns_capture: true,
            ingress_only: false,
            ipv6: true,
            probe_source_v4: PROBE_SOURCE_V4,
            probe_source_v6: PROBE_SOURCE_V6,
            virtual_interfaces: Vec::new(),
        }
    }
}

/// Installs the rules, or replaces those that are there, in one step: no packet sees half of them. Repeating it is harmless.
/// Connections that the pod has go on undisturbed, captured or not.
///
/// # Errors
/// When the kernel has no nf_tables, or the caller lacks CAP_NET_ADMIN in the namespace. What was there before stays then.
pub fn install(namespace: &NetworkNamespace, rules: &PodRules) -> Result<()> {
    let rules = rules.for_kernel(namespace)?;
    // First the routes, which do nothing until something carries the mark.
    for (rule, route) in rules.reply_routing() {
        links::add_route(namespace, &route)?;
        links::add_policy_rule(namespace, &rule)?;
    }
    match rules.apply(namespace, Family::Inet) {
        Err(error) if lacks_inet(&error) && !rules.ipv6 => rules.apply(namespace, Family::Ipv4),
        other => other,
    }?;
    // After the rules: with them the kernel loads what these settings belong to.
    half_closed::keep(namespace);
    path_mtu::find(namespace);
    Ok(())
}

/// Ends the capture of new connections and leaves everything on which captured connections depend: they go on until they
/// end by themselves. Follow with [`remove`] once the proxy has no more connections in this pod.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN in the namespace.
pub fn remove_redirect(namespace: &NetworkNamespace) -> Result<()> {
    let mut batch = Batch::new();
    for table in installed(namespace)? {
        if table.name == NAT_TABLE {
            // The base chains stay, without rules: the kernel translates packets of existing connections only as long as the
            // namespace has a NAT chain. With the last one gone, data of captured connections would leave the pod in the
            // clear, towards the original destination.
            batch.flush(&table, None);
        }
    }
    batch.commit(namespace)
}

/// Makes DNS queries from a port that was used while the pod was captured follow the current rules. Call it between
/// [`remove_redirect`] and the proxy's end: a program that uses one socket for all its queries would otherwise keep
/// asking a proxy that is gone.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN in the namespace.
pub fn release_dns(namespace: &NetworkNamespace) -> Result<()> {
    conntrack::forget_dns(namespace)
}

/// Removes all traces. Captured connections that still exist are cut: call [`remove_redirect`] first and wait for them to
/// end, because what the application sends on them between this and the cut leaves the pod in the clear.
///
/// # Errors
/// When the caller lacks CAP_NET_ADMIN in the namespace.
pub fn remove(namespace: &NetworkNamespace) -> Result<()> {
    let mut batch = Batch::new();
    for table in installed(namespace)? {
        batch.remove_table(&table);
    }
    batch.commit(namespace)?;
    let both = PodRules { ipv6: links::has_ipv6(namespace)?, ..PodRules::default() };
    for (rule, route) in both.reply_routing() {
        links::delete_policy_rule(namespace, &rule)?;
        links::delete_route(namespace, &route)?;
    }
    Ok(())
}

/// The differences from a fresh [`install`]; empty if there are none. Comments, counters and other tables don't matter.
///
/// # Errors
/// When the namespace can't be examined.
pub fn check(namespace: &NetworkNamespace, rules: &PodRules) -> Result<Vec<Problem>> {
    let rules = rules.for_kernel(namespace)?;
    let installed = installed(namespace)?;
    let family = if !rules.ipv6 && installed.iter().any(|table| table.family == Family::Ipv4) {
        Family::Ipv4
    } else {
        Family::Inet
    };
    let wanted = rules.tables(family);
    let mut problems = Vec::new();
    for table in &installed {
        if !wanted.iter().any(|content| content.table == *table) {
            problems.push(Problem::Unexpected(format!("table {table}")));
        }
    }
    for content in &wanted {
        if installed.contains(&content.table) {
            content.check(namespace, &mut problems)?;
        } else {
            problems.push(Problem::Missing(format!("table {}", content.table)));
        }
    }
    let (found_rules, found_routes) =
        (links::list_policy_rules(namespace)?, links::list_routes(namespace, REPLY_ROUTE_TABLE)?);
    for (rule, route) in rules.reply_routing() {
        if !found_rules.contains(&rule) {
            problems.push(Problem::Missing(rule.to_string()));
        }
        let same = |found: &Route| {
            (found.destination, found.kind, &found.device) == (route.destination, route.kind, &route.device)
        };
        if !found_routes.iter().any(same) {
            problems.push(Problem::Missing(format!("route {route}")));
        }
    }
    Ok(problems)
}

/// Whether new connections are redirected, by all the rules or some of them.
///
/// # Errors
/// When the namespace can't be examined.
pub fn redirects(namespace: &NetworkNamespace) -> Result<bool> {
    for table in installed(namespace)?.into_iter().filter(|table| table.name == NAT_TABLE) {
        if !nft::list_rules(namespace, &table)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The mesh's tables that exist.
fn installed(namespace: &NetworkNamespace) -> Result<Vec<Table>> {
    let ours = |table: &Table| [NAT_TABLE, MANGLE_TABLE, RAW_TABLE].contains(&table.name.as_str());
    Ok(nft::list_tables(namespace)?.into_iter().map(|info| info.table).filter(ours).collect())
}

/// Whether the kernel has nf_tables but not for both families at once, as kernels built without IPv6.
pub(crate) fn lacks_inet(error: &Error) -> bool {
    matches!(error, Error::Nft { entry, .. } if entry.starts_with("add table inet"))
        && matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

impl PodRules {
    /// Applies the tables of one family.
    fn apply(&self, namespace: &NetworkNamespace, family: Family) -> Result<()> {
        let commit = |contents: Vec<Content>, leave: &[&str]| {
            let mut batch = Batch::new();
            for name in [NAT_TABLE, MANGLE_TABLE, RAW_TABLE].into_iter().filter(|name| !leave.contains(name)) {
                batch.remove_table(&Table::new(family, name));
            }
            for content in contents.into_iter().filter(|content| !leave.contains(&content.table.name.as_str())) {
                content.add_to(&mut batch);
            }
            batch.commit(namespace)
        };
        if installed(namespace)?.iter().any(|table| table.name == NAT_TABLE) {
            return commit(self.tables(family), &[]);
        }
        // First enrolment. The marking tables switch connection tracking on and change nothing for unmarked packets; only
        // then can the existing connections be entered, and only then may the redirection follow.
        commit(self.tables(family), &[NAT_TABLE])?;
        let redirected = conntrack::keep_existing_connections(namespace)
            .and_then(|()| commit(self.tables(family), &[MANGLE_TABLE, RAW_TABLE]));
        if redirected.is_err() {
            // The failure is what the caller must hear of; leftovers of it can't be told better.
            let _ = remove(namespace);
        }
        redirected
    }

    /// Drops what the kernel can't do.
    fn for_kernel(&self, namespace: &NetworkNamespace) -> Result<Self> {
        Ok(Self { ipv6: self.ipv6 && links::has_ipv6(namespace)?, ..self.clone() })
    }

    fn reply_routing(&self) -> Vec<(PolicyRule, Route)> {
        let deliver = |route: Route| route.kind(RouteKind::Local).device("lo").table(REPLY_ROUTE_TABLE);
        let rule = |ipv6| PolicyRule {
            ipv6,
            mark: Some((REPLY_MARK, MARK_MASK)),
            priority: REPLY_RULE_PRIORITY,
            table: REPLY_ROUTE_TABLE,
        };
        let mut all = vec![(rule(false), deliver(Route::default_v4()))];
        if self.ipv6 {
            all.push((rule(true), deliver(Route::default_v6())));
        }
        all
    }

    /// The one loopback address of each family that is exempt. Istio exempts no more of 127.0.0.0/8 than this.
    fn loopbacks(&self) -> impl Iterator<Item = IpNet> {
        self.per_family(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)
    }

    fn probe_sources(&self) -> impl Iterator<Item = IpNet> {
        self.per_family(self.probe_source_v4, self.probe_source_v6)
    }

    fn per_family(&self, v4: Ipv4Addr, v6: Ipv6Addr) -> impl Iterator<Item = IpNet> {
        let v6 = self.ipv6.then_some(IpAddr::V6(v6));
        std::iter::once(IpAddr::V4(v4)).chain(v6).map(IpNet::from)
    }

    fn tables(&self, family: Family) -> Vec<Content> {
        let mut tables = vec![self.nat(family), self.mangle(family)];
        if self.dns_capture {
            tables.push(raw(family));
        }
        tables
    }

    fn nat(&self, family: Family) -> Content {
        // Priority -100 is where destination translation belongs.
        let mut content = content(Table::new(family, NAT_TABLE), (ChainType::Nat, -100), (ChainType::Nat, -100));
        let mut add = |chain, rule| content.rules.push((chain, rule));
        let tcp = || Rule::new().l4proto(Protocol::Tcp);
        for interface in &self.virtual_interfaces {
            let arriving = || Rule::new().input_interface(interface).l4proto(Protocol::Tcp).counter();
            add(PREROUTING, arriving().redirect(OUTBOUND_PORT));
            add(PREROUTING, arriving().return_());
        }
        if !self.ingress_only {
            for probe in self.probe_sources() {
                add(PREROUTING, tcp().saddr(probe).counter().accept());
            }
            for loopback in self.loopbacks() {
                let unmarked = tcp().daddr_not(loopback).dport_not(TUNNEL_PORT).mark_not(PROXY_MARK, MARK_MASK);
                add(PREROUTING, unmarked.counter().redirect(INBOUND_PORT));
            }
        }
        for probe in self.probe_sources() {
            add(OUTPUT, tcp().daddr(probe).counter().accept());
        }
        if self.dns_capture {
            let udp = Rule::new().output_interface_not("lo").mark_not(PROXY_MARK, MARK_MASK).l4proto(Protocol::Udp);
            add(OUTPUT, udp.dport(DNS).counter().redirect(DNS_PORT));
            for loopback in self.loopbacks() {
                let unmarked = tcp().daddr_not(loopback).dport(DNS).mark_not(PROXY_MARK, MARK_MASK);
                add(OUTPUT, unmarked.counter().redirect(DNS_PORT));
            }
        }
        add(OUTPUT, tcp().mark(REPLY_MARK, MARK_MASK).counter().accept());
        for loopback in self.loopbacks() {
            // The pod talking to its own address.
            add(OUTPUT, Rule::new().output_interface("lo").daddr_not(loopback).counter().accept());
        }
        for loopback in self.loopbacks() {
            let unmarked = tcp().daddr_not(loopback).mark_not(PROXY_MARK, MARK_MASK);
            add(OUTPUT, unmarked.counter().redirect(OUTBOUND_PORT));
        }
        content
    }

    fn mangle(&self, family: Family) -> Content {
        // The output chain has type route because the packet must be routed again once it has the mark.
        let mut content =
            content(Table::new(family, MANGLE_TABLE), (ChainType::Filter, -150), (ChainType::Route, -150));
        if !self.ingress_only {
            let from_proxy = Rule::new().mark(PROXY_MARK, MARK_MASK).counter();
            content.rules.push((PREROUTING, from_proxy.set_connection_mark(REPLY_MARK, MARK_MASK)));
        }
        let reply = Rule::new().connection_mark(REPLY_MARK, MARK_MASK).counter();
        content.rules.push((OUTPUT, reply.set_mark_from_connection()));
        content
    }
}

/// A table with Istio's shape: base chains that do nothing but call the chains with the rules.
fn content(table: Table, prerouting: (ChainType, i32), output: (ChainType, i32)) -> Content {
    Content {
        table,
        chains: vec![
            Chain::base("prerouting", prerouting.0, Hook::Prerouting, prerouting.1),
            Chain::base("output", output.0, Hook::Output, output.1),
            Chain::regular(PREROUTING),
            Chain::regular(OUTPUT),
        ],
        rules: vec![("output", Rule::new().jump(OUTPUT)), ("prerouting", Rule::new().jump(PREROUTING))],
    }
}

fn raw(family: Family) -> Content {
    // Priority -300 comes before connection tracking (-200), or a zone would come too late.
    let mut content = content(Table::new(family, RAW_TABLE), (ChainType::Filter, -300), (ChainType::Filter, -300));
    let udp = || Rule::new().l4proto(Protocol::Udp);
    let query = udp().dport(DNS).mark(PROXY_MARK, MARK_MASK).counter();
    let answer = udp().sport(DNS).mark_not(PROXY_MARK, MARK_MASK).counter();
    content.rules.push((OUTPUT, query.set_connection_zone(DNS_ZONE)));
    content.rules.push((PREROUTING, answer.set_connection_zone(DNS_ZONE)));
    content
}

#[cfg(test)]
#[path = "pod_rules_tests.rs"]
mod tests;
