//! What becomes of a datagram: the mesh carries TCP, so UDP passes by it, and what a reader should know of that is said.

use std::net::SocketAddr;

use leno_model::{Mesh, Service, ServiceName, Transport, Workload};

use crate::authorization::Named;
use crate::endpoints;
use crate::explain::{EndpointExplanation, Explanation, Outcome, Path, describe};
use crate::explain_endpoint::party;
use crate::find::Destination;
use crate::routing::{self, Addressed};

/// Port of DNS, whose queries the source's own proxy answers.
const DNS: u16 = 53;

/// Explains UDP of `source` to `destination`.
pub fn explain_udp(mesh: &Mesh, source: &Workload, destination: impl Into<Destination>) -> Explanation {
    let mut out = Explanation {
        source: party(mesh, source),
        destination: destination.into(),
        transport: "udp",
        outcome: Outcome::PassesBy,
        steps: Vec::new(),
        refused: None,
        endpoints: Vec::new(),
        at_waypoint: None,
    };
    match out.destination.clone() {
        Destination::Address(address) => {
            describe(mesh, source, address, &mut out.steps);
            if address.port() == DNS && source.may_be_in_mesh() {
                out.outcome = Outcome::Answered;
                out.steps
                    .push("it is a DNS query: the source's own proxy answers it, and nothing is sent there".to_owned());
            } else {
                passes(mesh, source, address, &mut out);
            }
        }
        Destination::Unaddressed { service, port } => {
            refuse(
                format!("service {service} has no address, and none of its endpoints has one for port {port}"),
                &mut out,
            );
        }
    }
    out
}

fn passes(mesh: &Mesh, source: &Workload, address: SocketAddr, out: &mut Explanation) {
    match routing::addressed(mesh, source, address) {
        Addressed::Nobody => out.endpoints.push(endpoint(mesh, address, None)),
        Addressed::Workload(workload) => out.endpoints.push(endpoint(mesh, address, Some(workload))),
        Addressed::Service(service) => to_service(mesh, service, address, out),
    }
    if out.refused.is_none() {
        out.steps.push("the mesh does not carry UDP: it passes by, unencrypted, and no policy is asked".to_owned());
    }
}

fn to_service(mesh: &Mesh, service: &Service, address: SocketAddr, out: &mut Explanation) {
    let udp: Vec<_> = service.ports.iter().filter(|port| port.transport == Transport::Udp).collect();
    let Some(port) = udp.iter().find(|port| port.service_port == address.port()) else {
        let offered: Vec<_> = udp.iter().map(|port| port.service_port.to_string()).collect();
        let offered = if offered.is_empty() { "no UDP port".to_owned() } else { offered.join(", ") };
        let ServiceName { namespace, hostname } = &service.id;
        let port = address.port();
        return refuse(format!("service {namespace}/{hostname} has no UDP port {port}; it has: {offered}"), out);
    };
    let mut ready: Vec<_> = endpoints::ready(mesh, service).collect();
    ready.sort_by(|a, b| a.workload.uid.cmp(&b.workload.uid));
    for found in ready {
        let ip = found.workload.addresses.iter().find(|ip| ip.is_ipv4() == address.is_ipv4());
        if let (Some(ip), Some(target)) = (ip, found.target_port(port)) {
            out.endpoints.push(endpoint(mesh, SocketAddr::new(*ip, target), Some(&found.workload)));
        }
    }
    if out.endpoints.is_empty() {
        refuse(format!("no endpoint of {} is ready for UDP port {}", service.name, address.port()), out);
    }
}

fn refuse(reason: String, out: &mut Explanation) {
    out.outcome = Outcome::Refused;
    out.refused = Some(reason);
}

fn endpoint(mesh: &Mesh, address: SocketAddr, workload: Option<&Workload>) -> EndpointExplanation {
    let mut notes = Vec::new();
    if let Some(workload) = workload {
        let idle: Vec<String> = mesh
            .policies_for(workload)
            .map(|found| match found {
                Ok(policy) => Named(&policy.id).to_string(),
                Err(id) => Named(id).to_string(),
            })
            .collect();
        if !idle.is_empty() {
            notes.push(format!("these policies do NOT restrict it: {}", idle.join(", ")));
        }
    }
    let path = Path::Plaintext { reason: "it is UDP".to_owned() };
    EndpointExplanation {
        workload: workload.map(|it| party(mesh, it)),
        address,
        path,
        refused: None,
        arrival: None,
        notes,
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{Action, Port, Rule};

    use super::*;
    use crate::test_support::{at, endpoint, mesh, pod, policy, service};

    #[test]
    fn udp_passes_by_and_says_so() {
        let mut dns = service("dns", &["10.96.0.9"]);
        dns.ports.push(Port { transport: Transport::Udp, ..Port::tcp(5353, 53) });
        let client = pod("client", "10.0.0.1");
        let server = endpoint("dns-1", "10.0.1.1", &[&dns]);
        let mut mesh = mesh(&[&dns], &[&client, &server]);
        mesh.upsert_policy(policy("default/nobody", Action::Deny, vec![Rule::default()]).into());
        let explanation = explain_udp(&mesh, &client, at("10.96.0.9:5353"));
        assert_eq!(
            explanation.to_string(),
            "default/client (spiffe://cluster.local/ns/default/sa/client) to 10.96.0.9:5353/udp: passes by, unencrypted; no \
             policy is asked\n  \
             10.96.0.9 is service default/dns.default.svc.cluster.local\n  \
             the mesh does not carry UDP: it passes by, unencrypted, and no policy is asked\n\
             endpoint 10.0.1.1:53 at default/dns-1 (spiffe://cluster.local/ns/default/sa/dns-1)\n  \
             path: plaintext, because it is UDP\n  \
             note: these policies do NOT restrict it: default/nobody\n"
        );
        let other = explain_udp(&mesh, &client, at("10.96.0.9:80"));
        assert_eq!(other.outcome, Outcome::Refused);
        assert_eq!(
            other.refused.as_deref(),
            Some("service default/dns.default.svc.cluster.local has no UDP port 80; it has: 5353")
        );
        let elsewhere = explain_udp(&mesh, &client, at("1.2.3.4:123"));
        assert_eq!((elsewhere.outcome, elsewhere.endpoints.len()), (Outcome::PassesBy, 1));
    }

    #[test]
    fn a_query_is_answered_by_the_sources_own_proxy() {
        let (client, server) = (pod("client", "10.0.0.1"), pod("server", "10.0.0.2"));
        let mesh = mesh(&[], &[&client, &server]);
        let explanation = explain_udp(&mesh, &client, at("10.0.0.2:53"));
        assert_eq!((explanation.outcome, explanation.endpoints.len()), (Outcome::Answered, 0));
        assert!(explanation.to_string().contains(":53/udp: answered by the source's own proxy\n"), "{explanation}");
    }
}
