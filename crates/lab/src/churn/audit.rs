//! Checks that every proxy holds the mesh as it is.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Deref;

use leno_proto::workload::address::Type;
use leno_proto::workload::{Address, TunnelProtocol, Workload, WorkloadStatus};
use prost::Message as _;

use super::state::Held;
use super::world::{Expected, Inventory};

/// At most this many differences are named.
const NAMED: usize = 3;

/// What is wrong, if anything is. One proxy, the witness, has kept all resources in full. It is compared with the mesh,
/// and the other proxies with it.
pub(super) fn audit(mut each: impl Iterator<Item: Deref<Target = Held>>, inventory: &Inventory) -> Result<(), String> {
    let Some(witness) = each.next() else { return Ok(()) };
    let mut workloads: HashMap<&String, &Expected> = inventory.workloads.iter().collect();
    let mut services: BTreeSet<&String> = inventory.services.iter().collect();
    let mut wrong = Vec::new();
    for kept in witness.kept() {
        let name = &kept.name;
        let decoded = prost_types::Any::decode(&*kept.body).and_then(|any| Address::decode(&*any.value));
        match decoded.map(|address| address.r#type) {
            Ok(Some(Type::Workload(workload))) => match workloads.remove(name) {
                Some(expected) => wrong.extend(compare(name, &workload, expected)),
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
    wrong.extend(workloads.into_keys().chain(services).map(|name| format!("{name} is missing")));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leno_proto::discovery::Resource;
    use leno_proto::workload::{PortList, Service};

    use super::*;
    use crate::churn::mesh::Mesh;
    use crate::churn::phase::{Kind, Shape};
    use crate::churn::state::{Names, Watched};
    use crate::churn::wire::Sink as _;

    const SHAPE: Shape = Shape { services: 2, pods: 2, proxies: 2, changes: 1.0, arriving: 1 };

    fn resource(name: &str, of: Type) -> Vec<u8> {
        let value = Address { r#type: Some(of) }.encode_to_vec();
        let any = prost_types::Any { type_url: leno_proto::ADDRESS_TYPE.to_owned(), value };
        Resource { name: name.to_owned(), resource: Some(any), ..Resource::default() }.encode_to_vec()
    }

    fn workload(uid: &str, pod: &Expected) -> Workload {
        let mut workload = Workload {
            uid: uid.to_owned(),
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            addresses: vec![pod.address.octets().to_vec().into()],
            canonical_revision: pod.revision.clone(),
            node: pod.node.clone(),
            service_account: pod.service_account.clone(),
            services: [(pod.service.clone(), PortList::default())].into(),
            ..Workload::default()
        };
        workload.set_tunnel_protocol(TunnelProtocol::Hbone);
        workload
    }

    /// Gives a proxy all resources of the mesh.
    fn told(mesh: &Mesh, held: &mut Held) {
        for name in mesh.inventory().services {
            let (namespace, hostname) = name.split_once('/').unwrap();
            let (namespace, hostname) = (namespace.to_owned(), hostname.to_owned());
            held.resource(&resource(&name, Type::Service(Service { namespace, hostname, ..Service::default() })));
        }
        for (uid, pod) in mesh.inventory().workloads {
            held.resource(&resource(&uid, Type::Workload(workload(&uid, &pod))));
        }
    }

    #[test]
    fn differences_of_a_proxy_are_named() {
        let mut mesh = Mesh::new(SHAPE);
        let names = Arc::new(Names::new(Vec::new()));
        let proxy =
            |witness| Held::new(names.clone(), Arc::new(Watched::default()), mesh.inventory().resources(), witness);
        let mut each = [proxy(true), proxy(false)];
        let judge = |each: &[Held; 2], mesh: &Mesh| audit(each.iter(), &mesh.inventory());
        assert!(judge(&each, &mesh).unwrap_err().contains("in 6 resources"));
        each.iter_mut().for_each(|held| told(&mesh, held));
        assert_eq!(judge(&each, &mesh), Ok(()));

        let (uid, pod) = mesh.inventory().workloads.into_iter().next().unwrap();
        let wrong = Workload { addresses: vec![vec![9; 4].into()], ..workload(&uid, &pod) };
        each[1].resource(&resource(&uid, Type::Workload(wrong.clone())));
        assert!(judge(&each, &mesh).unwrap_err().contains("1 proxies hold something else"), "a proxy of many");
        each[0].resource(&resource(&uid, Type::Workload(wrong)));
        assert!(judge(&each, &mesh).unwrap_err().contains(&uid), "all proxies");

        told(&mesh, &mut each[0]);
        let removed =
            mesh.change(Kind::ReplacePod).lines.lines().next().unwrap().replace("-Pod ", "").replace(' ', "/");
        assert!(judge(&each, &mesh).unwrap_err().contains("in 2 resources"), "one too many, one too few");
        for held in &mut each {
            told(&mesh, held);
        }
        assert!(judge(&each, &mesh).unwrap_err().contains(&format!("{removed} is held, but is no pod")));
        for held in &mut each {
            held.removed(format!("Kubernetes//Pod/{removed}").as_bytes());
        }
        assert_eq!(judge(&each, &mesh), Ok(()));
        each[1].removed(mesh.inventory().services[0].as_bytes());
        assert!(judge(&each, &mesh).is_err());
    }
}
