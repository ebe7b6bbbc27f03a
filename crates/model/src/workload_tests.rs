use super::*;

fn pod() -> Workload {
    Workload { service_account: "web".into(), ..Workload::new("c//Pod/shop/web-1", "shop", "web-1") }
}

#[test]
fn what_speaks_hbone_and_what_may_be_in_the_mesh() {
    let plain = pod();
    let tunnelled = Workload { tunnel_protocol: TunnelProtocol::Hbone, ..pod() };
    let native = Workload { native_tunnel: true, ..pod() };
    let strange = Workload { not_understood: Some("new".into()), ..pod() };
    for (workload, takes_hbone, may_be_in_mesh) in
        [(plain, false, false), (tunnelled, true, true), (native, true, false), (strange, false, true)]
    {
        assert_eq!((workload.takes_hbone(), workload.may_be_in_mesh()), (takes_hbone, may_be_in_mesh), "{workload:?}");
    }
}

#[test]
fn its_identity_is_made_of_its_names_or_there_is_none() {
    let identity = pod().identity().map(|identity| identity.to_string());
    assert_eq!(identity.as_deref(), Some("spiffe://cluster.local/ns/shop/sa/web"));
    assert_eq!(Workload { service_account: "a/b".into(), ..pod() }.identity(), None);
    assert_eq!(Workload { trust_domain: "".into(), ..pod() }.identity(), None);
}

#[test]
fn a_pod_is_known_by_its_uid() {
    assert!(pod().is_pod());
    assert!(!Workload { uid: "c/networking.istio.io/WorkloadEntry/shop/web".into(), ..pod() }.is_pod());
}

#[test]
fn kinds_are_named_as_in_baggage() {
    let all = [WorkloadType::Deployment, WorkloadType::CronJob, WorkloadType::Pod, WorkloadType::Job];
    assert_eq!(all.map(WorkloadType::as_str), ["deployment", "cronjob", "pod", "job"]);
}
