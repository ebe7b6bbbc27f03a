//! `/config_dump`: everything this proxy believes, in the JSON that `istioctl ztunnel-config`
//! reads.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::{
    Action, ApplicationProtocol, ApplicationTunnel, Authorization, Endpoint, GatewayAddress, GatewayDestination,
    Health, HealthPolicy, KeptFor, LoadBalancingMode, Match, Mesh, NetworkMode, Scope, Service, Set, StringMatch,
    TunnelProtocol, Visibility, Workload,
};
use leno_tls::{CertificateInfo, CertificateStatus};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use crate::carrier::{Carried, Carrier};
use crate::config::Config;
use crate::core::Core;

/// The state to be dumped, as of one moment. Writing down a mesh of fifty thousand workloads takes a second and 50 MB,
/// so it is written item by item, on a thread that nobody waits for.
pub(crate) struct ConfigDump<C> {
    mesh: Arc<Mesh>,
    certificates: Vec<CertificateStatus>,
    carried: C,
    config: Value,
}

impl<C: Carried> ConfigDump<C> {
    pub(crate) fn new(core: &Core, carrier: &impl Carrier<Carried = C>) -> Self {
        let mut config = settings(&core.config);
        config.extend(carrier.settings());
        Self {
            mesh: core.state.load(),
            certificates: core.certificates.statuses(),
            carried: carrier.carried(),
            config: config.into(),
        }
    }

    /// Writes the dump.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(out, self).map_err(io::Error::from)
    }
}

impl<C: Carried> Serialize for ConfigDump<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mesh = &*self.mesh;
        let mut workloads: Vec<&Workload> = mesh.workloads().map(|w| &**w).collect();
        workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
        let mut services: Vec<&Service> = mesh.services().map(|s| &**s).collect();
        services.sort_by(|a, b| a.id.cmp(&b.id));
        let mut policies: Vec<&Authorization> = mesh.policies().map(|p| &**p).collect();
        policies.sort_by(|a, b| a.id.cmp(&b.id));
        let mut dump = serializer.serialize_map(None)?;
        dump.serialize_entry("workloads", &List(|| workloads.iter().copied().map(workload)))?;
        dump.serialize_entry("services", &List(|| services.iter().map(|service| ServiceOf { mesh, service })))?;
        let mut kept: Vec<_> = mesh.kept_policies().collect();
        kept.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        let in_force =
            policies.iter().copied().map(policy).chain(kept.iter().map(|(old, whom)| kept_policy(old, *whom)));
        dump.serialize_entry("policies", &List(|| in_force.clone()))?;
        dump.serialize_entry("certificates", &List(|| self.certificates.iter().map(certificate)))?;
        self.carried.members(&mut dump)?;
        dump.serialize_entry("version", &json!({"version": env!("CARGO_PKG_VERSION"), "component": "leno"}))?;
        dump.serialize_entry("config", &self.config)?;
        dump.end()
    }
}

/// A list whose items are created one by one.
pub struct List<F>(pub F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for List<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A map whose entries are created one by one.
pub struct Named<F>(pub F);

impl<F: Fn() -> I, I: Iterator<Item = (String, Value)>> Serialize for Named<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}

/// A service with its endpoints, of which there may be many.
struct ServiceOf<'a> {
    mesh: &'a Mesh,
    service: &'a Service,
}

impl Serialize for ServiceOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in service(self.service) {
            map.serialize_entry(key, &value)?;
        }
        map.serialize_entry("endpoints", &Named(|| self.mesh.endpoints(&self.service.id).map(endpoint)))?;
        map.end()
    }
}

fn workload(w: &Workload) -> Value {
    json!({
        "uid": w.uid,
        "name": w.name,
        "namespace": w.namespace,
        "workloadIps": w.addresses,
        "hostname": w.hostname,
        "network": w.network,
        "protocol": match w.tunnel_protocol { TunnelProtocol::None => "TCP", TunnelProtocol::Hbone => "HBONE" },
        "networkMode": match w.network_mode { NetworkMode::Standard => "Standard", NetworkMode::HostNetwork => "HostNetwork" },
        "trustDomain": w.trust_domain,
        "serviceAccount": w.service_account,
        "waypoint": w.waypoint.as_deref().map(gateway),
        "networkGateway": w.network_gateway.as_deref().map(gateway),
        "node": w.node,
        "canonicalName": w.canonical_name,
        "canonicalRevision": w.canonical_revision,
        "workloadName": w.workload_name,
        "workloadType": w.workload_type.as_str(),
        "nativeTunnel": w.native_tunnel,
        "applicationTunnel": w.application_tunnel.map(application_tunnel),
        "authorizationPolicies": w.authorization_policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "status": match w.health { Health::Healthy => "Healthy", Health::Unhealthy => "Unhealthy" },
        "clusterId": w.cluster_id,
        "locality": {"region": w.locality.region, "zone": w.locality.zone, "subzone": w.locality.subzone},
        "services": w.services.keys().map(ToString::to_string).collect::<Vec<_>>(),
        "capacity": w.capacity,
        "notUnderstood": w.not_understood,
    })
}

fn gateway(g: &GatewayAddress) -> Value {
    let destination = match &g.destination {
        GatewayDestination::Hostname(id) => id.to_string(),
        GatewayDestination::Address(address) => address.to_string(),
    };
    json!({"destination": destination, "hboneMtlsPort": g.hbone_mtls_port})
}

fn application_tunnel(tunnel: ApplicationTunnel) -> Value {
    let protocol = match tunnel.protocol {
        ApplicationProtocol::None => "NONE",
        ApplicationProtocol::Proxy => "PROXY",
    };
    json!({"protocol": protocol, "port": tunnel.port})
}

fn ports(ports: &[leno_model::Port]) -> Value {
    ports.iter().map(|p| (p.service_port.to_string(), json!(p.target_port))).collect::<Map<_, _>>().into()
}

fn endpoint(e: &Endpoint) -> (String, Value) {
    let status = match e.workload.health {
        Health::Healthy => "Healthy",
        Health::Unhealthy => "Unhealthy",
    };
    let value = json!({"workloadUid": e.workload.uid, "port": ports(&e.ports), "status": status});
    (e.workload.uid.to_string(), value)
}

/// The service's members except its endpoints.
fn service(s: &Service) -> [(&'static str, Value); 13] {
    let balancing = &s.load_balancing;
    let load_balancer = json!({
        "mode": match balancing.mode {
            LoadBalancingMode::Unspecified => "Standard",
            LoadBalancingMode::Strict => "Strict",
            LoadBalancingMode::Failover => "Failover",
            LoadBalancingMode::Passthrough => "Passthrough",
        },
        "routingPreferences": balancing.routing_preference.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>(),
        "healthPolicy": match balancing.health_policy {
            HealthPolicy::OnlyHealthy => "OnlyHealthy",
            HealthPolicy::AllowAll => "AllowAll",
        },
    });
    let visibility = match s.visibility {
        Visibility::Public => "Public",
        Visibility::Namespace => "Namespace",
    };
    let ranges = s.ranges.iter().map(|(network, range)| format!("{network}/{range}"));
    [
        ("name", json!(s.name)),
        ("namespace", json!(s.id.namespace)),
        ("hostname", json!(s.id.hostname)),
        ("vips", s.addresses.iter().map(ToString::to_string).collect()),
        ("cidrVips", ranges.collect()),
        ("ports", ports(&s.ports)),
        ("subjectAltNames", json!(s.subject_alt_names)),
        ("waypoint", json!(s.waypoint.as_ref().map(gateway))),
        ("loadBalancer", load_balancer),
        ("ipFamilies", json!(format!("{:?}", s.ip_families))),
        ("canonical", json!(s.canonical)),
        ("visibility", json!(visibility)),
        ("notUnderstood", json!(s.not_understood)),
    ]
}

fn policy(p: &Authorization) -> Value {
    let rules: Vec<Vec<Vec<Value>>> = p
        .rules
        .iter()
        .map(|rule| rule.clauses.iter().map(|clause| clause.matches.iter().map(one_match).collect()).collect())
        .collect();
    json!({
        "name": p.id.name,
        "namespace": p.id.namespace,
        "scope": match p.scope {
            Scope::Global => "Global",
            Scope::Namespace => "Namespace",
            Scope::WorkloadSelector => "WorkloadSelector",
        },
        "action": match p.action { Action::Allow => "Allow", Action::Deny => "Deny" },
        "rules": rules,
        "dryRun": p.dry_run,
        "notUnderstood": p.not_understood,
    })
}

/// A policy that goes on to count for some workloads only, until they are told of what follows it. It stands beside its
/// new version, if there is one, and has a mark that others don't have.
fn kept_policy(p: &Authorization, whom: KeptFor<'_>) -> Value {
    let mut value = policy(p);
    value["keptFor"] = match whom {
        KeptFor::Naming(workloads) => {
            json!({"because": "removed, and these workloads name it still", "workloads": names(workloads)})
        }
        KeptFor::NotYetNaming(successors) => {
            json!({"because": "in force until workloads name one of these", "policies": names(successors)})
        }
        KeptFor::NamedBefore(workloads) => {
            json!({"because": "these workloads named it until a moment ago", "workloads": names(workloads)})
        }
    };
    value
}

fn names<T: ToString>(all: &Set<T>) -> Vec<String> {
    all.keys().map(ToString::to_string).collect()
}

fn one_match(m: &Match) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, values: Vec<Value>| {
        if !values.is_empty() {
            out.insert(key.to_owned(), Value::Array(values));
        }
    };
    let strings = |list: &[StringMatch]| list.iter().map(string_match).collect();
    let nets = |list: &[ipnet::IpNet]| list.iter().map(|n| json!(n.to_string())).collect();
    let accounts = |list: &[leno_model::ServiceAccountMatch]| {
        list.iter().map(|a| json!({"namespace": a.namespace, "serviceAccount": a.service_account})).collect()
    };
    put("namespaces", strings(&m.namespaces));
    put("notNamespaces", strings(&m.not_namespaces));
    put("principals", strings(&m.principals));
    put("notPrincipals", strings(&m.not_principals));
    put("sourceIps", nets(&m.source_ips));
    put("notSourceIps", nets(&m.not_source_ips));
    put("destinationIps", nets(&m.destination_ips));
    put("notDestinationIps", nets(&m.not_destination_ips));
    put("destinationPorts", m.destination_ports.iter().map(|p| json!(p)).collect());
    put("notDestinationPorts", m.not_destination_ports.iter().map(|p| json!(p)).collect());
    put("serviceAccounts", accounts(&m.service_accounts));
    put("notServiceAccounts", accounts(&m.not_service_accounts));
    Value::Object(out)
}

fn string_match(s: &StringMatch) -> Value {
    match s {
        StringMatch::Exact(text) => json!({"Exact": text}),
        StringMatch::Prefix(text) => json!({"Prefix": text}),
        StringMatch::Suffix(text) => json!({"Suffix": text}),
        StringMatch::Presence => json!({"Presence": []}),
    }
}

fn certificate(status: &CertificateStatus) -> Value {
    let info = |c: CertificateInfo| {
        json!({
            "pem": c.pem,
            "serialNumber": decimal(&c.serial),
            "validFrom": timestamp(c.not_before),
            "expirationTime": timestamp(c.not_after),
        })
    };
    let chain = status.certificate.as_ref().map(|c| c.chain()).unwrap_or_default();
    let roots = status.certificate.as_ref().map(|c| c.roots()).unwrap_or_default();
    json!({
        "identity": status.identity.to_string(),
        "state": format!("{:?}", status.state),
        "failures": status.failures,
        "lastError": status.last_error,
        "certChain": chain.into_iter().map(info).collect::<Vec<_>>(),
        "rootCerts": roots.into_iter().map(info).collect::<Vec<_>>(),
    })
}

/// A hexadecimal number of any length in decimal, as `istioctl` reads serial numbers. Text that is not a hexadecimal
/// number is returned unchanged.
fn decimal(hex: &str) -> String {
    // The digits, the last one first.
    let mut digits = vec![0];
    for nibble in hex.chars() {
        let Some(mut carry) = nibble.to_digit(16) else { return hex.to_owned() };
        for digit in &mut digits {
            carry += *digit * 16;
            *digit = carry % 10;
            carry /= 10;
        }
        while carry > 0 {
            digits.push(carry % 10);
            carry /= 10;
        }
    }
    digits.iter().rev().filter_map(|digit| char::from_digit(*digit, 10)).collect()
}

/// RFC 3339, as `istioctl` parses it.
fn timestamp(time: SystemTime) -> Option<String> {
    time::OffsetDateTime::from(time).format(&time::format_description::well_known::Rfc3339).ok()
}

/// The settings in force, without the token.
fn settings(config: &Config) -> Map<String, Value> {
    let settings = [
        ("localNode", json!(config.node)),
        ("clusterId", json!(config.cluster_id)),
        ("clusterDomain", json!(config.cluster_domain)),
        ("network", json!(config.network)),
        ("xdsAddress", json!(config.xds_address)),
        ("caAddress", json!(config.ca_address)),
        ("secretTtlSeconds", json!(config.secret_ttl.as_secs())),
        ("drainDeadlineSeconds", json!(config.drain_deadline.as_secs())),
        ("takeoverTimeoutSeconds", json!(config.takeover_timeout.as_secs_f64())),
        ("poolMaxStreamsPerConnection", json!(config.pool_max_streams)),
        ("poolUnusedReleaseTimeoutSeconds", json!(config.pool_idle_timeout.as_secs())),
        ("windowBudgetBytes", json!(config.window_budget)),
        ("unreadBudgetBytes", json!(config.unread_budget)),
        ("ipv6Enabled", json!(config.ipv6)),
    ];
    settings.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

#[cfg(test)]
#[path = "config_dump_tests.rs"]
mod tests;
