use leno_model::{
    AppProtocol, GatewayAddress, GatewayDestination, Health, HealthPolicy, IpFamilies, LoadBalancingMode, NetworkMode,
    Port, RoutingScope, Transport, TunnelProtocol, Workload,
};
use proptest::prelude::*;

use super::*;
use crate::testing::{load, upserts};
use leno_objects::Object;

fn translate(yaml: &str) -> Translator {
    let mut translator = Translator::new(Options::default());
    translator.apply(upserts(yaml));
    translator
}

fn pod_workload(translator: &Translator, name: &str) -> Arc<Workload> {
    let uid = format!("Kubernetes//Pod/{name}");
    translator.mesh().workload(&uid).unwrap_or_else(|| panic!("no {uid}")).clone()
}

fn named(service: &str) -> ServiceName {
    service_name::service_name(&Options::default(), "default", service)
}

const NODE: &str = r#"
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z, topology.istio.io/subzone: s}
"#;

const WEB: &str = r#"
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1
  labels: {app: web, version: v2, pod-template-hash: abc}
  annotations: {ambient.istio.io/redirection: enabled}
  ownerReferences: [{kind: ReplicaSet, name: web-deployment-abc, controller: true}]
spec:
  nodeName: node-1
  serviceAccountName: web
  containers:
  - name: c
    ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]
status:
  phase: Running
  podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]
  conditions: [{type: Ready, status: "True"}]
"#;

const WEB_SERVICE: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.1.0.1
  clusterIPs: [10.1.0.1, "fd01::1"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http}
  - {name: grpc-api, port: 81, targetPort: 9090}
  - {name: same, port: 82, appProtocol: kubernetes.io/h2c}
  - {name: missing, port: 83, targetPort: nowhere}
  - {name: dns, port: 53, protocol: UDP, targetPort: dns}
"#;

#[test]
fn a_pod_becomes_a_workload() {
    let translator = translate(&[NODE, WEB, WEB_SERVICE].concat());
    let workload = pod_workload(&translator, "default/web-1");
    assert_eq!(workload.addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    assert_eq!(workload.tunnel_protocol, TunnelProtocol::Hbone);
    assert_eq!(workload.health, Health::Healthy);
    assert_eq!(workload.network_mode, NetworkMode::Standard);
    assert_eq!(&*workload.service_account, "web");
    assert_eq!(&*workload.node, "node-1");
    assert_eq!(&*workload.workload_name, "web-deployment");
    assert_eq!((&*workload.canonical_name, &*workload.canonical_revision), ("web", "v2"));
    let locality = &workload.locality;
    assert_eq!((&*locality.region, &*locality.zone, &*locality.subzone), ("r", "z", "s"));
    let port = |service_port, target_port, app_protocol| Port { app_protocol, ..Port::tcp(service_port, target_port) };
    assert_eq!(
        workload.services[&named("web")],
        [
            port(80, 8080, AppProtocol::Http11),
            port(81, 9090, AppProtocol::Grpc),
            port(82, 82, AppProtocol::Http2),
            Port { transport: Transport::Udp, ..Port::tcp(53, 53) },
        ]
    );
    assert_eq!(translator.mesh().endpoints(&named("web")).count(), 1);
}

#[test]
fn a_service_becomes_a_service() {
    let translator = translate(WEB_SERVICE);
    let service = translator.mesh().service(&named("web")).expect("there");
    assert_eq!(&*service.id.hostname, "web.default.svc.cluster.local");
    assert!(service.canonical);
    assert_eq!(service.addresses.len(), 2);
    assert_eq!(service.ip_families, IpFamilies::Dual);
    let targets: Vec<_> = service.tcp_ports().map(|port| (port.service_port, port.target_port)).collect();
    assert_eq!(targets, [(80, 0), (81, 9090), (82, 82), (83, 0)]);
    assert_eq!(service.port_named("grpc-api", Transport::Tcp).map(|port| port.service_port), Some(81));
    assert_eq!(service.port_named("grpc-api", Transport::Udp), None);
    assert_eq!(
        service.port_named("dns", Transport::Udp).map(|port| (port.service_port, port.target_port)),
        Some((53, 0))
    );
    assert_eq!(service.port(53), None, "UDP is not carried");
    assert_eq!(service.load_balancing, leno_model::LoadBalancing::default());
}

/// What a pod's state makes of its health, tunnel and existence.
#[test]
fn states_of_a_pod() {
    type Edit = fn(&mut Pod);
    type Expected = Option<(Health, TunnelProtocol)>;
    let cases: [(&str, Edit, Expected); 9] = [
        ("as it is", |_| {}, Some((Health::Healthy, TunnelProtocol::Hbone))),
        ("not captured", |p| p.metadata.annotations.clear(), Some((Health::Healthy, TunnelProtocol::None))),
        (
            "native tunnel",
            |p| {
                p.metadata.annotations.clear();
                p.metadata.labels.insert("networking.istio.io/tunnel".into(), "http".into());
            },
            Some((Health::Healthy, TunnelProtocol::Hbone)),
        ),
        ("not ready", |p| p.status.conditions = Arc::default(), Some((Health::Unhealthy, TunnelProtocol::Hbone))),
        (
            "going",
            |p| p.metadata.deletion_timestamp = "2026-01-01T00:00:00Z".parse().ok(),
            Some((Health::Unhealthy, TunnelProtocol::Hbone)),
        ),
        (
            "pending with address",
            |p| p.status.phase = leno_objects::PodPhase::Pending,
            Some((Health::Healthy, TunnelProtocol::Hbone)),
        ),
        ("without address", |p| p.status.pod_ips = Box::default(), None),
        ("succeeded", |p| p.status.phase = leno_objects::PodPhase::Succeeded, None),
        ("failed", |p| p.status.phase = leno_objects::PodPhase::Failed, None),
    ];
    for (what, edit, expected) in cases {
        let Some(Object::Pod(mut pod)) = load(WEB).pop() else { panic!("a pod") };
        edit(&mut pod);
        let mut translator = Translator::new(Options::default());
        translator.apply([Change::upsert(pod)]);
        let got = translator.mesh().workloads().next().map(|w| (w.health, w.tunnel_protocol));
        assert_eq!(got, expected, "{what}");
    }
}

#[test]
fn canonical_names_by_precedence() {
    type Labels<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Labels<'_>, &str, &str); 5] = [
        (&[], "web-1", "latest"),
        (&[("app", "a"), ("version", "1")], "a", "1"),
        (
            &[("app", "a"), ("app.kubernetes.io/name", "b"), ("app.kubernetes.io/version", "2"), ("version", "1")],
            "b",
            "2",
        ),
        (&[("app.kubernetes.io/name", "b"), ("service.istio.io/canonical-name", "c")], "c", "latest"),
        (&[("service.istio.io/canonical-revision", "3"), ("version", "1")], "web-1", "3"),
    ];
    for (labels, name, revision) in cases {
        let Some(Object::Pod(mut pod)) = load(WEB).pop() else { panic!("a pod") };
        pod.metadata.owner_references = Arc::default();
        pod.metadata.labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let mut translator = Translator::new(Options::default());
        translator.apply([Change::upsert(pod)]);
        let workload = pod_workload(&translator, "default/web-1");
        assert_eq!((&*workload.canonical_name, &*workload.canonical_revision), (name, revision), "{labels:?}");
        assert_eq!(&*workload.workload_name, "web-1");
    }
}

#[test]
fn preferences_of_a_service() {
    use RoutingScope::{Network, Node, Region, Subzone, Zone};
    let near = [Network, Region, Zone];
    let nearest = [Network, Region, Zone, Subzone, Node];
    let namespace = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: default, annotations: {{networking.istio.io/traffic-distribution: {value}}}}}\n---\n"
        )
    };
    let service = |annotations: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec: {{ports: [{{port: 1}}], {spec}}}\n"
        )
    };
    let cases: [(String, LoadBalancingMode, &[RoutingScope]); 9] = [
        (service("", ""), LoadBalancingMode::Unspecified, &[]),
        (service("", "internalTrafficPolicy: Local"), LoadBalancingMode::Strict, &[Node]),
        (service("", "trafficDistribution: PreferClose"), LoadBalancingMode::Failover, &near),
        (service("", "trafficDistribution: PreferSameZone"), LoadBalancingMode::Failover, &near),
        (service("", "trafficDistribution: PreferSameNode"), LoadBalancingMode::Failover, &nearest),
        (
            service("networking.istio.io/traffic-distribution: PreferClose", "trafficDistribution: PreferSameNode"),
            LoadBalancingMode::Failover,
            &nearest,
        ),
        (service("networking.istio.io/traffic-distribution: PreferClose", ""), LoadBalancingMode::Failover, &near),
        (namespace("PreferClose") + &service("", ""), LoadBalancingMode::Failover, &near),
        (
            namespace("PreferClose") + &service("networking.istio.io/traffic-distribution: Any", ""),
            LoadBalancingMode::Unspecified,
            &[],
        ),
    ];
    for (yaml, mode, scopes) in cases {
        let translator = translate(&yaml);
        let service = translator.mesh().service(&named("a")).expect("there");
        assert_eq!(
            (service.load_balancing.mode, &service.load_balancing.routing_preference[..]),
            (mode, scopes),
            "{yaml}"
        );
    }
    let all = translate(&service("", "publishNotReadyAddresses: true, clusterIP: None, ipFamilies: [IPv6]"));
    let all = all.mesh().service(&named("a")).expect("there");
    assert_eq!(all.load_balancing.health_policy, HealthPolicy::AllowAll);
    assert!(all.addresses.is_empty());
    assert_eq!(all.ip_families, IpFamilies::Ipv6Only);
}

#[test]
fn waypoints_are_those_of_the_nearest_label() {
    let mesh = |namespace: &str, labels: &str| {
        let space =
            format!("\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: default, labels: {{{namespace}}}}}\n");
        let pod = WEB.replace("labels: {app: web,", &format!("labels: {{{labels} app: web,"));
        let service = WEB_SERVICE.replace("{name: web}", &format!("{{name: web, labels: {{{labels}}}}}"));
        let translator = translate(&[space, pod, service].concat());
        let shown = |gateway: Option<&GatewayAddress>| match gateway.map(|gateway| &gateway.destination) {
            Some(GatewayDestination::Hostname(service)) => service.to_string(),
            other => format!("{other:?}"),
        };
        let mesh = translator.mesh();
        let of_service = shown(mesh.service(&named("web")).expect("there").waypoint.as_ref());
        let of_pod = shown(mesh.workloads().next().expect("there").waypoint.as_deref());
        assert_eq!(of_service, of_pod, "{namespace} {labels}");
        of_service
    };
    assert_eq!(mesh("", ""), "None");
    assert_eq!(mesh("istio.io/use-waypoint: gate", ""), "default/gate.default.svc.cluster.local");
    assert_eq!(mesh("", "istio.io/use-waypoint: own,"), "default/own.default.svc.cluster.local");
    assert_eq!(
        mesh("istio.io/use-waypoint: gate", "istio.io/use-waypoint: own,"),
        "default/own.default.svc.cluster.local"
    );
    assert_eq!(mesh("istio.io/use-waypoint: gate", "istio.io/use-waypoint: none,"), "None");
    let elsewhere = "istio.io/use-waypoint: gate, istio.io/use-waypoint-namespace: infra";
    assert_eq!(mesh(elsewhere, ""), "infra/gate.infra.svc.cluster.local");
    assert_eq!(mesh(elsewhere, "istio.io/use-waypoint: own,"), "default/own.default.svc.cluster.local");
    let gate = "gateway.networking.k8s.io/gateway-name: gate,";
    assert_eq!(mesh("istio.io/use-waypoint: gate", gate), "None", "a waypoint is not sent through itself");
}

/// A Gateway of `namespace` with these labels and annotations, that lets itself be used from there.
fn gateway(namespace: &str, labels: &str, annotations: &str, from: &str) -> String {
    format!(
        "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gate, namespace: {namespace}, labels: {{{labels}}}, annotations: {{{annotations}}}}}\n\
         spec: {{gatewayClassName: leno-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {{namespaces: {from}}}}}]}}\n"
    )
}

fn space(labels: &str) -> String {
    format!("\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: default, labels: {{{labels}}}}}\n")
}

/// What the service and the pod of a mesh must pass, and what keeps connections to the pod from going around it.
fn passing(yaml: &str) -> [String; 3] {
    let translator = translate(yaml);
    let shown = |gateway: Option<&GatewayAddress>| match gateway.map(|gateway| &gateway.destination) {
        Some(GatewayDestination::Hostname(service)) => service.to_string(),
        _ => String::new(),
    };
    let pod = pod_workload(&translator, "default/web-1");
    let mesh = translator.mesh();
    for policy in &pod.authorization_policies {
        assert!(mesh.policy(policy).is_some(), "{policy} is named and not there");
    }
    let policies = pod.authorization_policies.iter().map(ToString::to_string).collect::<Vec<_>>();
    let service = shown(mesh.service(&named("web")).expect("there").waypoint.as_ref());
    [service, shown(pod.waypoint.as_deref()), policies.join(" ")]
}

#[test]
fn a_gateway_says_what_it_is_for_and_who_may_use_it() {
    let here = "default/gate.default.svc.cluster.local";
    let used = [WEB, WEB_SERVICE, &space("istio.io/use-waypoint: gate")].concat();
    let by = |labels: &str, annotations: &str, from: &str| {
        passing(&[&used, &gateway("default", labels, annotations, from)[..]].concat())
    };
    let only = "default/through_waypoint_gate.default_82.8080.9090";
    assert_eq!(by("", "", "{}"), [here, "", only]);
    assert_eq!(by("istio.io/waypoint-for: service", "", "{}"), [here, "", only]);
    assert_eq!(
        by("istio.io/waypoint-for: all", "", "{}"),
        [here, here, "default/through_waypoint_gate.default_82.8080.9090+gate.default_not_82.8080.9090"]
    );
    assert_eq!(
        by("istio.io/waypoint-for: workload", "", "{}"),
        ["", here, "default/through_waypoint_gate.default_not_82.8080.9090"],
        "clients of the service come directly"
    );
    assert_eq!(by("istio.io/waypoint-for: none", "", "{}"), ["", "", ""]);
    assert_eq!(by("", "leno.mesh/waypoint-bypass: allowed", "{}"), [here, "", ""]);
    let refused = "default/gate.default.svc.cluster.local.not-allowed.invalid";
    assert_eq!(by("", "", "{from: None}"), [refused, "", only]);

    let abroad = |labels: &str, from: &str| {
        let user = space(&format!("istio.io/use-waypoint: gate, istio.io/use-waypoint-namespace: infra{labels}"));
        let [service, ..] = passing(&[WEB, WEB_SERVICE, &user, &gateway("infra", "", "", from)].concat());
        service
    };
    let (there, selector) =
        ("infra/gate.infra.svc.cluster.local", "{from: Selector, selector: {matchLabels: {tier: paid}}}");
    let refused = format!("{there}.not-allowed.invalid");
    assert_eq!(abroad("", "{}"), refused);
    assert_eq!(abroad("", "{from: All}"), there);
    assert_eq!(abroad("", selector), refused);
    assert_eq!(abroad(", tier: paid", selector), there);

    let class = "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: leno-waypoint, labels: {istio.io/waypoint-for: none}}\nspec: {controllerName: leno.mesh/waypoint-controller}\n";
    let with = |gateway: String| passing(&[&used, class, &gateway[..]].concat());
    assert_eq!(with(gateway("default", "", "", "{}")), ["", "", ""], "the class's word");
    assert_eq!(with(gateway("default", "istio.io/waypoint-for: service", "", "{}")), [here, "", only]);
    let missing = passing(&used);
    assert_eq!(missing[..2], [here, here], "nobody knows what it would be for");
}

#[test]
fn a_port_is_closed_only_if_every_service_that_leads_there_has_a_waypoint() {
    let other = |labels: &str, port: u16| {
        format!(
            "\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: other, labels: {{{labels}}}}}\nspec: {{clusterIP: 10.1.0.2, selector: {{app: web}}, ports: [{{port: {port}}}]}}\n"
        )
    };
    let used = [WEB, WEB_SERVICE, &space("istio.io/use-waypoint: gate"), &gateway("default", "", "", "{}")].concat();
    let policies = |more: String| {
        let [.., policies] = passing(&[used.clone(), more].concat());
        policies
    };
    assert_eq!(policies(other("", 9)), "default/through_waypoint_gate.default_9.82.8080.9090");
    let without = "istio.io/use-waypoint: none";
    assert_eq!(policies(other(without, 8080)), "default/through_waypoint_gate.default_82.9090");
    assert_eq!(policies(other(without, 9)), "default/through_waypoint_gate.default_82.8080.9090");
    assert_eq!(
        policies(other("istio.io/use-waypoint: gate-2", 8080)),
        "default/through_waypoint_gate.default_82.9090+gate.default_gate-2.default_8080",
        "either waypoint may bring connections"
    );
}

#[test]
fn who_goes_around_a_waypoint_is_refused() {
    let yaml = [WEB, WEB_SERVICE, &space("istio.io/use-waypoint: gate"), &gateway("default", "", "", "{}")].concat();
    let mut translator = translate(&yaml);
    let says = |translator: &Translator, account: Option<&str>, port: u16| {
        let pod = pod_workload(translator, "default/web-1");
        let source =
            account.map(|account| format!("spiffe://cluster.local/ns/default/sa/{account}").parse().expect("an id"));
        let connection = leno_policy::Connection {
            source: source.as_ref(),
            source_ip: [10, 0, 0, 9].into(),
            destination: ([10, 0, 0, 1], port).into(),
        };
        leno_policy::authorize(translator.mesh(), &pod, &connection).to_string()
    };
    assert!(says(&translator, Some("gate"), 8080).starts_with("allowed"));
    for stranger in [Some("client"), None] {
        let said = says(&translator, stranger, 8080);
        assert!(said.contains("its waypoint must be passed"), "{said}");
        assert!(says(&translator, stranger, 7777).starts_with("allowed"), "no service leads to this port");
    }
    let delta = translator.apply([Change::Remove(ObjectKey::new(Kind::Namespace, "", "default"))]);
    assert_eq!((delta.workloads.len(), delta.policies.len()), (1, 1));
    assert_eq!(translator.mesh().policies().count(), 0, "nobody names it any more");
    assert!(says(&translator, None, 8080).starts_with("allowed"));
}

#[test]
fn external_names_are_left_out() {
    let translator = translate(
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: ExternalName, externalName: example.com}\n",
    );
    assert_eq!(translator.mesh().services().count(), 0);
}

const MANUAL: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: 10.1.0.2, ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: sql, port: 6432}, {name: other, port: 1}]
endpoints:
- {addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1}}
- {addresses: [192.0.2.1], zone: z9, conditions: {ready: false}}
- {addresses: [192.0.2.2], targetRef: {kind: Pod, name: web-1, namespace: elsewhere}}
"#;

#[test]
fn endpoints_by_hand() {
    let mut translator = translate(&[WEB, MANUAL].concat());
    let ports = [Port::tcp(5432, 6432)];
    assert_eq!(pod_workload(&translator, "default/web-1").services[&named("db")], ports);
    let uid = "Kubernetes/discovery.k8s.io/EndpointSlice/default/db-1/192.0.2.1";
    let bare = translator.mesh().workload(uid).expect("there").clone();
    assert_eq!(bare.network_mode, NetworkMode::HostNetwork);
    assert_eq!(bare.tunnel_protocol, TunnelProtocol::None);
    assert_eq!(bare.health, Health::Unhealthy);
    assert_eq!(&*bare.locality.zone, "z9");
    assert_eq!(bare.services[&named("db")], ports);
    // A pod of another namespace is not enlisted; its address is only an address.
    assert_eq!(translator.mesh().endpoints(&named("db")).count(), 3);

    // With a selector the slices are Kubernetes' own writing and say nothing new.
    let selecting = "apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {selector: {x: other}, ports: [{name: sql, port: 5432}]}\n";
    translator.apply(upserts(selecting));
    assert_eq!(translator.mesh().endpoints(&named("db")).count(), 0);
    translator.apply([Change::Remove(ObjectKey::new(Kind::EndpointSlice, "default", "db-1"))]);
    assert_eq!(translator.mesh().workloads().count(), 1);
}

/// Effective mode for each combination of modes on the three levels.
#[test]
fn peer_authentication_precedence() {
    const MODES: [Option<&str>; 5] = [None, Some("UNSET"), Some("DISABLE"), Some("PERMISSIVE"), Some("STRICT")];
    let peer = |namespace: &str, selector: &str, mode: Option<&str>| {
        mode.map_or(String::new(), |mode| {
            format!(
                "\n---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: p{}, namespace: {namespace}}}\nspec:\n  mtls: {{mode: {mode}}}\n{selector}",
                selector.len()
            )
        })
    };
    for mesh in MODES {
        for namespace in MODES {
            for workload in MODES {
                let yaml = [
                    WEB.to_owned(),
                    peer("istio-system", "", mesh),
                    peer("default", "", namespace),
                    peer("default", "  selector: {matchLabels: {app: web}}\n", workload),
                    peer("default", "  selector: {matchLabels: {app: another}}\n", Some("STRICT")),
                    peer("elsewhere", "", Some("STRICT")),
                ]
                .concat();
                let said = |level: Option<&'static str>| level.filter(|mode| *mode != "UNSET");
                let effective = said(workload).or(said(namespace)).or(said(mesh));
                let translator = translate(&yaml);
                let policies: Vec<String> = pod_workload(&translator, "default/web-1")
                    .authorization_policies
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                let strict: &[&str] = &["istio-system/istio_converted_static_strict"];
                let expected = if effective == Some("STRICT") { strict } else { &[] };
                assert_eq!(policies, expected, "{mesh:?} {namespace:?} {workload:?}");
            }
        }
    }
}

#[test]
fn the_oldest_peer_authentication_counts() {
    let peer = |name: &str, mode: &str, created: &str| {
        format!(
            "\n---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: {name}, creationTimestamp: \"{created}\"}}\nspec: {{mtls: {{mode: {mode}}}}}\n"
        )
    };
    let strict = |yaml: String| {
        !pod_workload(&translate(&(WEB.to_owned() + &yaml)), "default/web-1").authorization_policies.is_empty()
    };
    assert!(strict(peer("b", "STRICT", "2020-01-01T00:00:00Z") + &peer("a", "PERMISSIVE", "2021-01-01T00:00:00Z")));
    assert!(!strict(peer("b", "STRICT", "2022-01-01T00:00:00Z") + &peer("a", "PERMISSIVE", "2021-01-01T00:00:00Z")));
    assert!(strict(peer("a", "STRICT", "2022-01-01T00:00:00Z") + &peer("b", "PERMISSIVE", "2022-01-01T00:00:00Z")));
}

#[test]
fn modes_per_port() {
    let peer = |mode: &str, ports: &str| {
        format!(
            "\n---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: p}}\nspec: {{selector: {{matchLabels: {{app: web}}}}, mtls: {{mode: {mode}}}, portLevelMtls: {{{ports}}}}}\n"
        )
    };
    // Base, ports, expected policy, ports it names, whether those are excepted.
    type Case<'a> = (&'a str, &'a str, Option<&'a str>, &'a [u16], bool);
    let cases: [Case<'_>; 6] = [
        ("STRICT", "8080: {mode: PERMISSIVE}, 9090: {mode: DISABLE}", Some("converted"), &[8080, 9090], true),
        ("STRICT", "8080: {mode: STRICT}", Some("static"), &[], false),
        ("STRICT", "8080: {mode: UNSET}", Some("static"), &[], false),
        ("PERMISSIVE", "8080: {mode: STRICT}, 9090: {mode: UNSET}", Some("converted"), &[8080], false),
        ("UNSET", "8080: {mode: STRICT}", Some("converted"), &[8080], false),
        ("DISABLE", "8080: {mode: PERMISSIVE}", None, &[], false),
    ];
    for (mode, ports, kind, named, excepted) in cases {
        let translator = translate(&(WEB.to_owned() + &peer(mode, ports)));
        let workload = pod_workload(&translator, "default/web-1");
        let policy = workload.authorization_policies.first().map(|id| {
            assert_eq!(workload.authorization_policies.len(), 1);
            translator.mesh().policy(id).expect("sent").clone()
        });
        match (kind, policy) {
            (None, None) => {}
            (Some("static"), Some(policy)) => {
                assert_eq!(&*policy.id.name, "istio_converted_static_strict", "{mode} {ports}")
            }
            (Some("converted"), Some(policy)) => {
                assert_eq!(&*policy.id.name, "converted_peer_authentication_p", "{mode} {ports}");
                let matches = &policy.rules[0].clauses[0].matches[0];
                let (named_ports, other) = if excepted {
                    (&matches.not_destination_ports, &matches.destination_ports)
                } else {
                    (&matches.destination_ports, &matches.not_destination_ports)
                };
                assert_eq!((&named_ports[..], other.len()), (named, 0), "{mode} {ports}");
            }
            other => panic!("{mode} {ports}: {other:?}"),
        }
    }
}

/// What is missing of a policy may be what made it stricter.
#[test]
fn what_was_not_understood_is_closed() {
    let mut translator = translate(WEB);
    let mut policies = load(
        "\n---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p}\nspec: {rules: [{}]}\n\
         ---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p}\n\
         spec: {selector: {matchLabels: {app: web}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {80: {mode: DISABLE}}}\n",
    );
    for object in &mut policies {
        match object {
            Object::AuthorizationPolicy(policy) => policy.not_understood = vec!["unknown field spec.x".to_owned()],
            Object::PeerAuthentication(peer) => peer.not_understood = vec!["unknown field spec.y".to_owned()],
            other => panic!("{other:?}"),
        }
    }
    let delta = translator.apply(policies.into_iter().map(Change::upsert));
    assert_eq!((delta.warned.len(), translator.warnings().len()), (2, 2));
    let policy = PolicyName { namespace: "default".into(), name: "p".into() };
    let policy = translator.mesh().policy(&policy).expect("there").clone();
    assert_eq!(policy.action, leno_model::Action::Deny);
    assert_eq!(policy.rules, [leno_model::Rule { clauses: Vec::new() }]);
    let strict = PolicyName::static_strict("istio-system".into());
    assert_eq!(pod_workload(&translator, "default/web-1").authorization_policies, [strict]);
}

#[test]
fn a_selector_policy_is_listed_by_its_workloads() {
    let policy = |namespace: &str, name: &str, spec: &str| {
        format!(
            "\n---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
        )
    };
    let yaml = [
        WEB.to_owned(),
        policy("default", "mine", "selector: {matchLabels: {app: web}}"),
        policy("default", "other", "selector: {matchLabels: {app: db}}"),
        policy("default", "wide", ""),
        policy("istio-system", "root", "selector: {matchLabels: {app: web}}"),
        policy("elsewhere", "foreign", "selector: {matchLabels: {app: web}}"),
        policy("default", "audit", "action: AUDIT, selector: {matchLabels: {app: web}}"),
    ]
    .concat();
    let mut translator = translate(&yaml);
    let listed = |translator: &Translator| -> Vec<String> {
        pod_workload(translator, "default/web-1").authorization_policies.iter().map(ToString::to_string).collect()
    };
    assert_eq!(listed(&translator), ["default/mine", "istio-system/root"]);
    assert!(translator.mesh().policy(&PolicyName { namespace: "default".into(), name: "audit".into() }).is_none());
    let delta =
        translator.apply(upserts(&policy("default", "mine", "action: DENY, selector: {matchLabels: {app: web}}")));
    assert!(delta.workloads.is_empty(), "the pod lists the same policies as before");
    assert_eq!(delta.policies.len(), 1);
    translator.apply([Change::Remove(ObjectKey::new(Kind::AuthorizationPolicy, "default", "mine"))]);
    assert_eq!(listed(&translator), ["istio-system/root"]);
}

#[test]
fn a_change_touches_only_what_it_must() {
    let pods: String = (0..50)
        .map(|i| {
            WEB.replace("web-1", &format!("web-{i}"))
                .replace("10.0.0.1", &format!("10.0.1.{i}"))
                .replace("fd00::1", &format!("fd00::1:{i}"))
        })
        .collect();
    let mut translator = translate(&[NODE, &pods, WEB_SERVICE].concat());
    let ready = WEB
        .replace("web-1", "web-7")
        .replace("10.0.0.1", "10.0.1.7")
        .replace("fd00::1", "fd00::1:7")
        .replace("\"True\"", "\"False\"");
    let delta = translator.apply(upserts(&ready));
    assert_eq!(
        delta.workloads.iter().map(|uid| uid.to_string()).collect::<Vec<_>>(),
        ["Kubernetes//Pod/default/web-7"]
    );
    assert!(delta.services.is_empty() && delta.policies.is_empty());
    assert!(translator.apply(upserts(&ready)).is_empty(), "the same again is no change");
    let delta = translator.apply(upserts(&NODE.replace("zone: z,", "zone: far,")));
    assert_eq!(delta.workloads.len(), 50);
    assert!(
        translator
            .apply(upserts(&NODE.replace("zone: z,", "zone: far,").replace("{topo", "{other: label, topo")))
            .is_empty()
    );
}

fn rule(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "\n---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn virtual_service(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "\n---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn route(kind: &str, name: &str, parent: &str, backend: &str) -> String {
    format!(
        "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{parentRefs: [{{group: '', kind: Service, name: {parent}}}], rules: [{{backendRefs: [{{name: {backend}, port: 80}}]}}]}}\n"
    )
}

/// Objects that refer to each other in every way translation knows.
fn pool() -> Vec<Object> {
    let pod = |ns: &str, name: &str, app: &str, ip: u8, node: &str| {
        WEB.replace("name: web-1", &format!("name: {name}\n  namespace: {ns}"))
            .replace("app: web", &format!("app: {app}"))
            .replace("10.0.0.1", &format!("10.0.0.{ip}"))
            .replace("fd00::1", &format!("fd00::{ip}"))
            .replace("node-1", node)
    };
    let security = |kind: &str, ns: &str, name: &str, spec: &str| {
        format!(
            "\n---\napiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {ns}}}\nspec: {{{spec}}}\n"
        )
    };
    let selector = "selector: {matchLabels: {app: web}}";
    let yaml = [
        NODE.to_owned(),
        NODE.replace("zone: z,", "zone: far,"),
        NODE.replace("node-1", "node-2"),
        pod("default", "web-1", "web", 1, "node-1"),
        pod("default", "web-1", "db", 1, "node-2"),
        pod("default", "web-2", "web", 2, "node-1"),
        pod("istio-system", "web-1", "web", 3, "node-2"),
        WEB_SERVICE.to_owned(),
        WEB_SERVICE.replace("app: web", "app: db"),
        WEB_SERVICE.replace("  selector: {app: web}\n", ""),
        MANUAL.to_owned(),
        MANUAL.replace("service-name: db", "service-name: web").replace("db-1", "web-x").replace("name: sql", "name: http"),
        MANUAL.replace("name: web-1}", "name: web-2}"),
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n".to_owned(),
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: {networking.istio.io/traffic-distribution: PreferClose}}\n".to_owned(),
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {istio.io/use-waypoint: gate}}\n".to_owned(),
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {istio.io/use-waypoint: gate, istio.io/use-waypoint-namespace: infra}}\n".to_owned(),
        WEB_SERVICE.replace("{name: web}", "{name: web, labels: {istio.io/use-waypoint: none}}"),
        WEB_SERVICE.replace("{name: web}", "{name: web-2, labels: {istio.io/use-waypoint: gate}}"),
        WEB.replace("name: web-1", "name: web-3").replace("app: web,", "app: web, istio.io/use-waypoint: gate,").replace("10.0.0.1", "10.0.0.4").replace("fd00::1", "fd00::4"),
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {tier: paid, istio.io/use-waypoint: gate, istio.io/use-waypoint-namespace: infra}, annotations: {leno.mesh/waypoint-bypass: allowed}}\n".to_owned(),
        gateway("default", "", "", "{}"),
        gateway("default", "istio.io/waypoint-for: all", "", "{}"),
        gateway("infra", "", "", "{from: Selector, selector: {matchLabels: {tier: paid}}}"),
        gateway("infra", "istio.io/waypoint-for: workload", "", "{from: All}"),
        "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: leno-waypoint, labels: {istio.io/waypoint-for: all}}\nspec: {controllerName: leno.mesh/waypoint-controller}\n".to_owned(),
        security("AuthorizationPolicy", "default", "a", selector),
        security("AuthorizationPolicy", "default", "a", "action: AUDIT"),
        security("AuthorizationPolicy", "default", "a", "targetRefs: [{kind: Service, name: web}], rules: [{from: [{source: {principals: [x]}}]}]"),
        security("AuthorizationPolicy", "default", "b", "targetRefs: [{kind: Service, name: web}, {kind: Service, name: db}], action: DENY, rules: [{to: [{operation: {paths: [/x], ports: ['82']}}]}]"),
        security("AuthorizationPolicy", "default", "a", ""),
        security("AuthorizationPolicy", "istio-system", "a", selector),
        security("AuthorizationPolicy", "istio-system", "a", ""),
        security("PeerAuthentication", "default", "p", "mtls: {mode: STRICT}"),
        security("PeerAuthentication", "default", "p", "mtls: {mode: PERMISSIVE}"),
        security("PeerAuthentication", "default", "q", &format!("{selector}, portLevelMtls: {{80: {{mode: STRICT}}}}")),
        security("PeerAuthentication", "default", "q", &format!("{selector}, portLevelMtls: {{80: {{mode: PERMISSIVE}}}}")),
        security("PeerAuthentication", "istio-system", "p", "mtls: {mode: STRICT}"),
        security("PeerAuthentication", "istio-system", "p", selector),
        rule("default", "r", "host: web"),
        rule("default", "r", "host: '*.default.svc.cluster.local', trafficPolicy: {loadBalancer: {simple: RANDOM}}"),
        rule("default", "s", "host: web.default.svc.cluster.local, subsets: [{name: v1}]"),
        rule("other", "r", "host: web.default.svc.cluster.local"),
        rule("istio-system", "r", "host: '*', trafficPolicy: {loadBalancer: {simple: RANDOM}}"),
        rule("istio-system", "r", "host: web.default.svc.cluster.local"),
        route("HTTPRoute", "w", "web", "db"),
        route("HTTPRoute", "w", "web-2", "web"),
        route("TCPRoute", "w", "db", "web"),
        route("TCPRoute", "v", "web", "web-2"),
        virtual_service("default", "t", "hosts: [web], http: [{timeout: 1s}]"),
        virtual_service("default", "t", "hosts: [web-2, db], http: [{timeout: 2s}]"),
        virtual_service("default", "t", "hosts: [web], gateways: [other], http: [{timeout: 1s}]"),
        virtual_service("default", "u", "hosts: [web.default.svc.cluster.local, db], http: [{timeout: 3s}]"),
        virtual_service("other", "t", "hosts: [web.default.svc.cluster.local], http: [{timeout: 4s}]"),
    ]
    .concat();
    load(&yaml)
}

fn assert_same_mesh(got: &Mesh, wanted: &Mesh) {
    let workloads = |mesh: &Mesh| mesh.workloads().map(|w| (w.uid.clone(), w.clone())).collect::<BTreeMap<_, _>>();
    let services = |mesh: &Mesh| mesh.services().map(|s| (s.id.clone(), s.clone())).collect::<BTreeMap<_, _>>();
    let policies = |mesh: &Mesh| mesh.policies().map(|p| (p.id.clone(), p.clone())).collect::<BTreeMap<_, _>>();
    let rules = |mesh: &Mesh| mesh.endpoint_policies().cloned().collect::<Vec<_>>();
    let routes = |mesh: &Mesh| mesh.routes().map(|r| (r.id.clone(), r.clone())).collect::<BTreeMap<_, _>>();
    assert_eq!(routes(got), routes(wanted));
    assert_eq!(rules(got), rules(wanted));
    let defaults = |mesh: &Mesh| mesh.all_request_defaults().cloned().collect::<Vec<_>>();
    assert_eq!(defaults(got), defaults(wanted));
    assert_eq!(workloads(got), workloads(wanted));
    assert_eq!(services(got), services(wanted));
    assert_eq!(policies(got), policies(wanted));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However the objects got there, in whatever batches: the mesh is that of a fresh start, and
    /// the delta names exactly what differs.
    #[test]
    fn step_by_step_equals_from_scratch(steps in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..4), 1..25)) {
        let pool = pool();
        let mut translator = Translator::new(Options::default());
        for batch in steps {
            let before = translator.mesh().clone();
            let delta = translator.apply(batch.iter().map(|(index, keep)| {
                let object = index.get(&pool).clone();
                if *keep { Change::upsert(object) } else { Change::Remove(object.key()) }
            }));
            let mut fresh = Translator::new(Options::default());
            fresh.apply(translator.store().iter().map(|(_, object)| Change::Upsert(object.clone())));
            assert_same_mesh(translator.mesh(), fresh.mesh());
            prop_assert_eq!(translator.warnings(), fresh.warnings());
            for policy in fresh.mesh().endpoint_policies() {
                let readers = |of: &Translator| of.readers_of_endpoint_policy(&policy.id).cloned().collect::<Vec<_>>();
                prop_assert_eq!(readers(&translator), readers(&fresh));
            }
            for defaults in fresh.mesh().all_request_defaults() {
                let readers = |of: &Translator| of.readers_of_defaults(&defaults.id).cloned().collect::<Vec<_>>();
                prop_assert_eq!(readers(&translator), readers(&fresh));
            }
            let after = translator.mesh();
            for workload in before.workloads().chain(after.workloads()) {
                let differs = before.workload(&workload.uid) != after.workload(&workload.uid);
                prop_assert_eq!(differs, delta.workloads.contains(&workload.uid));
            }
            for service in before.services().chain(after.services()) {
                prop_assert_eq!(before.service(&service.id) != after.service(&service.id), delta.services.contains(&service.id));
            }
            for policy in before.endpoint_policies().chain(after.endpoint_policies()) {
                let differs = before.endpoint_policy(&policy.id) != after.endpoint_policy(&policy.id);
                prop_assert!(!differs || delta.endpoint_policies.contains_key(&policy.id));
            }
            for route in fresh.mesh().routes() {
                let readers = |of: &Translator| of.readers_of(&route.id).cloned().collect::<Vec<_>>();
                prop_assert_eq!(readers(&translator), readers(&fresh));
            }
            for policy in before.policies().chain(after.policies()) {
                prop_assert_eq!(before.policy(&policy.id) != after.policy(&policy.id), delta.policies.contains(&policy.id));
            }
        }
    }
}
