//! Whether every proxy holds what the mesh is.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_proto::workload::address::Type;
use leno_proto::workload::{Address, TunnelProtocol, Workload, WorkloadStatus};
use prost::Message as _;

use super::crowd::Crowd;
use super::mesh::{Expected, Mesh};

/// Differences that are named.
const NAMED: usize = 3;

/// What is wrong, if anything is. One proxy has kept everything in full, and that is compared with the mesh; what the others
/// hold is compared with its.
pub(super) fn audit(crowd: &Crowd, mesh: &Mesh) -> Result<(), String> {
    let mut each = crowd.each();
    let Some(witness) = each.next() else { return Ok(()) };
    let mut workloads = mesh.workloads();
    let mut services: BTreeSet<String> = mesh.services().collect();
    let mut wrong = Vec::new();
    for kept in witness.kept() {
        let name = &kept.name;
        let decoded = prost_types::Any::decode(&*kept.body).and_then(|any| Address::decode(&*any.value));
        match decoded.map(|address| address.r#type) {
            Ok(Some(Type::Workload(workload))) => match workloads.remove(name) {
                Some(expected) => wrong.extend(compare(name, &workload, &expected)),
                None => wrong.push(format!("{name} is held, but is no pod of the mesh")),
            },
            Ok(Some(Type::Service(service))) => {
                let said = format!("{}/{}", service.namespace, service.hostname);
                if said != *name || !services.remove(name) {
                    wrong.push(format!("{name} is held, but is no service of the mesh"));
                }
            }
            Ok(None) => wrong.push(format!("{name} is neither a workload nor a service")),
            Err(error) => wrong.push(format!("{name} cannot be read: {error}")),
        }
    }
    wrong.extend(workloads.keys().chain(&services).map(|name| format!("{name} is missing")));
    if !wrong.is_empty() {
        let named: Vec<_> = wrong.iter().take(NAMED).cloned().collect();
        return Err(format!("a proxy holds what the mesh is not, in {} resources: {}", wrong.len(), named.join("; ")));
    }
    let others: Vec<usize> = each.map(|held| held.differences(&witness)).filter(|count| *count > 0).collect();
    match others.iter().max() {
        Some(most) => Err(format!(
            "{} proxies hold something else than another one does, in up to {most} resources",
            others.len()
        )),
        None => Ok(()),
    }
}

fn compare(name: &str, workload: &Workload, expected: &Expected) -> Option<String> {
    let addresses: Vec<Option<IpAddr>> =
        workload.addresses.iter().map(|bytes| <[u8; 4]>::try_from(&bytes[..]).ok().map(IpAddr::from)).collect();
    let said = [
        (&workload.uid, name),
        (&workload.name, &expected.name),
        (&workload.namespace, &expected.namespace),
        (&workload.canonical_revision, &expected.revision),
        (&workload.node, &expected.node),
        (&workload.service_account, &expected.service_account),
    ];
    let field = said.into_iter().find(|(said, wanted)| said != wanted);
    if let Some((said, wanted)) = field {
        return Some(format!("{name} says {said:?} instead of {wanted:?}"));
    }
    let services: Vec<&String> = workload.services.keys().collect();
    let sound = addresses == [Some(IpAddr::from(expected.address))]
        && services == [&expected.service]
        && workload.tunnel_protocol() == TunnelProtocol::Hbone
        && workload.status() == WorkloadStatus::Healthy;
    (!sound).then(|| format!("{name} is {workload:?} instead of {expected:?}"))
}
