//! `/config_dump`: everything this proxy believes, in the JSON that `istioctl ztunnel-config`
//! reads.

use std::sync::Arc;
use std::time::SystemTime;

use leno_capture::zds::ClientStatus;
use leno_model::{
    Action, Authorization, GatewayAddress, GatewayDestination, Health, HealthPolicy, LoadBalancingMode, Match, Mesh,
    NetworkMode, Scope, Service, TunnelProtocol, Visibility, Workload,
};
use leno_tls::{CertificateInfo, CertificateStatus};
use serde_json::{Map, Value, json};

use crate::pod::{Context, Pod};
use crate::pods::Pods;

/// The whole dump.
pub(crate) fn dump(context: &Context, pods: &Pods, agent: &ClientStatus) -> Value {
    let mesh = context.state.load();
    let mut workloads: Vec<&Workload> = mesh.workloads().map(|w| &**w).collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    let mut services: Vec<&Service> = mesh.services().map(|s| &**s).collect();
    services.sort_by(|a, b| a.id.cmp(&b.id));
    let mut policies: Vec<&Authorization> = mesh.policies().map(|p| &**p).collect();
    policies.sort_by(|a, b| a.id.cmp(&b.id));
    json!({
        "workloads": workloads.into_iter().map(workload).collect::<Vec<_>>(),
        "services": services.into_iter().map(|s| service(&mesh, s)).collect::<Vec<_>>(),
        "policies": policies.into_iter().map(policy).collect::<Vec<_>>(),
        "certificates": context.certificates.statuses().into_iter().map(certificate).collect::<Vec<_>>(),
        "workloadState": pods.running().iter().map(pod).chain(agent.pending.iter().map(pending)).collect::<Map<_, _>>(),
        "version": {"version": env!("CARGO_PKG_VERSION"), "component": "leno"},
        "config": config(context),
    })
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
        "waypoint": w.waypoint.as_ref().map(gateway),
        "networkGateway": w.network_gateway.as_ref().map(gateway),
        "node": w.node,
        "canonicalName": w.canonical_name,
        "canonicalRevision": w.canonical_revision,
        "workloadName": w.workload_name,
        "workloadType": w.workload_type.as_str(),
        "nativeTunnel": w.native_tunnel,
        "authorizationPolicies": w.authorization_policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "status": match w.health { Health::Healthy => "Healthy", Health::Unhealthy => "Unhealthy" },
        "clusterId": w.cluster_id,
        "locality": {"region": w.locality.region, "zone": w.locality.zone, "subzone": w.locality.subzone},
        "services": w.services.keys().map(|id| json!({"namespace": id.namespace, "hostname": id.hostname})).collect::<Vec<_>>(),
        "capacity": w.capacity,
        "notUnderstood": w.not_understood,
    })
}

fn gateway(g: &GatewayAddress) -> Value {
    let destination = match &g.destination {
        GatewayDestination::Hostname(id) => json!({"namespace": id.namespace, "hostname": id.hostname}),
        GatewayDestination::Address(address) => json!(address.to_string()),
    };
    json!({"destination": destination, "hboneMtlsPort": g.hbone_mtls_port})
}

fn service(mesh: &Mesh, s: &Service) -> Value {
    let ports = |ports: &[leno_model::Port]| {
        ports.iter().map(|p| (p.service_port.to_string(), json!(p.target_port))).collect::<Map<_, _>>()
    };
    let endpoints: Map<String, Value> = mesh
        .endpoints(&s.id)
        .map(|e| {
            let status = match e.workload.health {
                Health::Healthy => "Healthy",
                Health::Unhealthy => "Unhealthy",
            };
            let endpoint = json!({"workloadUid": e.workload.uid, "port": ports(&e.ports), "status": status});
            (e.workload.uid.to_string(), endpoint)
        })
        .collect();
    let balancing = &s.load_balancing;
    json!({
        "name": s.name,
        "namespace": s.id.namespace,
        "hostname": s.id.hostname,
        "vips": s.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "cidrVips": s.ranges.iter().map(|(network, range)| format!("{network}/{range}")).collect::<Vec<_>>(),
        "ports": ports(&s.ports),
        "endpoints": endpoints,
        "subjectAltNames": s.subject_alt_names,
        "waypoint": s.waypoint.as_ref().map(gateway),
        "loadBalancer": {
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
        },
        "ipFamilies": format!("{:?}", s.ip_families),
        "canonical": s.canonical,
        "visibility": match s.visibility { Visibility::Public => "Public", Visibility::Namespace => "Namespace" },
        "notUnderstood": s.not_understood,
    })
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

fn one_match(m: &Match) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, values: Vec<Value>| {
        if !values.is_empty() {
            out.insert(key.to_owned(), Value::Array(values));
        }
    };
    let strings = |list: &[leno_model::StringMatch]| list.iter().map(|s| json!(s.to_string())).collect();
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

fn pod((uid, pod): &(String, Arc<Pod>)) -> (String, Value) {
    let (inbound, outbound) = pod.connections().dump();
    let inbound: Vec<Value> = inbound
        .into_iter()
        .map(|c| {
            let protocol = if c.source.is_some() { "HBONE" } else { "TCP" };
            let source = c.source.map(|id| id.to_string());
            json!({"src": c.source_ip, "srcIdentity": source, "actualDst": c.destination, "protocol": protocol})
        })
        .collect();
    let outbound: Vec<Value> = outbound
        .into_iter()
        .map(|c| json!({"src": c.source, "originalDst": c.original, "actualDst": c.actual}))
        .collect();
    let value = json!({
        "state": "Up",
        "connections": {"inbound": inbound, "outbound": outbound},
        "info": {
            "name": pod.info().name,
            "namespace": pod.info().namespace,
            "serviceAccount": pod.info().service_account,
        },
    });
    (uid.clone(), value)
}

fn pending((uid, reason): (&String, &String)) -> (String, Value) {
    (uid.clone(), json!({"state": "Pending", "error": reason}))
}

fn certificate(status: CertificateStatus) -> Value {
    let info = |c: CertificateInfo| {
        json!({
            "pem": c.pem,
            "serialNumber": c.serial,
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

/// RFC 3339, as `istioctl` parses it.
fn timestamp(time: SystemTime) -> Option<String> {
    time::OffsetDateTime::from(time).format(&time::format_description::well_known::Rfc3339).ok()
}

/// The settings in force, without the token.
fn config(context: &Context) -> Value {
    let c = &context.config;
    json!({
        "localNode": c.node,
        "clusterId": c.cluster_id,
        "clusterDomain": c.cluster_domain,
        "network": c.network,
        "xdsAddress": c.xds_address,
        "caAddress": c.ca_address,
        "inpodUds": c.inpod_uds,
        "secretTtlSeconds": c.secret_ttl.as_secs(),
        "drainDeadlineSeconds": c.drain_deadline.as_secs(),
        "poolMaxStreamsPerConnection": c.pool_max_streams,
        "poolUnusedReleaseTimeoutSeconds": c.pool_idle_timeout.as_secs(),
        "windowBudgetBytes": c.window_budget,
        "ipv6Enabled": c.ipv6,
        "dnsProxy": c.dns,
    })
}
