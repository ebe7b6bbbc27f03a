//! A pod that starts while no control plane can be reached. Nobody tells the proxy of it: not which policies guard it, so nobody is let
//! in, and nobody signs a certificate for it. Pods of one service account have one certificate, though. If another pod of the account is
//! on the node, what this pod opens can be proved with it, and the peers decide as they would about the other.

use leno_capture::zds::PodInfo;
use leno_model::{Mesh, Name, Workload, WorkloadType};

/// What can be said of the pod that the node agent has handed over, from another one of its service account on its node; `None` if
/// there is no such one.
pub(super) fn stand_in(mesh: &Mesh, pod: &PodInfo, node: &str) -> Option<Workload> {
    let like = mesh.peer_on_node(node, &pod.namespace, &pod.service_account)?;
    let uid = format!("{}//Pod/{}/{}", like.cluster_id, pod.namespace, pod.name);
    let name = Name::from(&*pod.name);
    Some(Workload {
        tunnel_protocol: like.tunnel_protocol,
        network: like.network.clone(),
        trust_domain: like.trust_domain.clone(),
        service_account: like.service_account.clone(),
        node: like.node.clone(),
        locality: like.locality.clone(),
        cluster_id: like.cluster_id.clone(),
        // The other one may be of another application, and what is told of connections must not name that.
        workload_type: WorkloadType::Pod,
        workload_name: name.clone(),
        canonical_name: name.clone(),
        ..Workload::new(uid, like.namespace.clone(), name)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leno_model::TunnelProtocol;

    use super::*;

    fn workload(name: &str, account: &str, node: &str) -> Workload {
        let mut workload = Workload::new(format!("Kubernetes//Pod/shop/{name}"), "shop", name);
        workload.service_account = account.into();
        workload.node = node.into();
        workload.tunnel_protocol = TunnelProtocol::Hbone;
        workload.trust_domain = "td".into();
        workload.addresses = vec!["10.0.0.1".parse().unwrap()];
        workload.authorization_policies = vec![leno_model::PolicyName { namespace: "shop".into(), name: "p".into() }];
        workload.canonical_name = "another".into();
        workload
    }

    fn stands_in(other: Workload) -> Option<Workload> {
        let mut mesh = Mesh::default();
        mesh.upsert_workload(Arc::new(other));
        let pod = PodInfo {
            uid: "1".to_owned(),
            name: "web-2".to_owned(),
            namespace: "shop".to_owned(),
            service_account: "web".to_owned(),
        };
        stand_in(&mesh, &pod, "n1")
    }

    #[test]
    fn a_pod_goes_by_another_of_its_account_on_its_node() {
        let other = workload("web-1", "web", "n1");
        let found = stands_in(other.clone()).unwrap();
        assert_eq!(found.identity(), other.identity());
        assert_eq!(
            (&*found.name, &*found.uid, &*found.canonical_name),
            ("web-2", "Kubernetes//Pod/shop/web-2", "web-2")
        );
        assert!(found.addresses.is_empty() && found.authorization_policies.is_empty(), "those are the other's");
    }

    #[test]
    fn nobody_else_stands_in() {
        assert_eq!(stands_in(workload("web-1", "web", "n2")), None, "of another node");
        assert_eq!(stands_in(workload("db-1", "db", "n1")), None, "of another account");
        let outside = Workload { tunnel_protocol: TunnelProtocol::None, ..workload("web-1", "web", "n1") };
        assert_eq!(stands_in(outside), None, "which has no certificate");
        let garbled = Workload { not_understood: Some("x".into()), ..workload("web-1", "web", "n1") };
        assert_eq!(stands_in(garbled), None, "of which nobody knows what applies to it");
    }
}
