use leno_objects::Change;

use super::*;
use crate::testing::load;

const GATE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
";
const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: gate, namespace: shop}
spec: {clusterIP: 10.1.0.9, ports: [{port: 15008}]}
";

fn pod(name: &str, ready: &str) -> String {
    format!(
        "\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{gateway.networking.k8s.io/gateway-name: gate}}}}\n\
         spec: {{containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIP: 10.0.0.7, conditions: [{{type: Ready, status: '{ready}'}}]}}\n"
    )
}

fn status(yaml: &str) -> Option<GatewayStatus> {
    let mut translator = Translator::new(Options::default());
    translator.apply(load(yaml).into_iter().map(Change::upsert));
    let gateway = Gateway::get(translator.store(), "shop", "gate").expect("a Gateway");
    of_gateway(&Known::of(&translator), gateway)
}

fn reasons(conditions: &[Condition]) -> Vec<String> {
    conditions.iter().map(|it| format!("{}={} {}", it.kind, it.holds, it.reason)).collect()
}

#[test]
fn a_waypoint_on_its_way() {
    let said = status(GATE).expect("it is ours");
    assert_eq!(reasons(&said.conditions), ["Accepted=true Accepted", "Programmed=false AddressNotAssigned"]);
    assert_eq!(said.hostname, None);
    let unready = status(&[GATE, SERVICE, &pod("a", "False")].concat()).expect("ours");
    assert_eq!(reasons(&unready.conditions), ["Accepted=true Accepted", "Programmed=false Pending"]);
    let ready = status(&[GATE, SERVICE, &pod("a", "True"), &pod("b", "False")].concat()).expect("ours");
    assert_eq!(reasons(&ready.conditions), ["Accepted=true Accepted", "Programmed=true Programmed"]);
    assert_eq!(ready.conditions[1].message, "1 of 2 waypoint pods are ready");
    assert_eq!(ready.hostname.as_deref(), Some("gate.shop.svc.cluster.local"));
    assert_eq!(
        reasons(&ready.listeners[0].conditions),
        [
            "Accepted=true Accepted",
            "ResolvedRefs=true ResolvedRefs",
            "Conflicted=false NoConflicts",
            "Programmed=true Programmed"
        ]
    );
    assert_eq!(ready.listeners[0].supported_kinds, ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"]);
}

#[test]
fn routes_that_are_in_force_at_a_waypoint_are_counted() {
    let service = |name: &str, labels: &str| {
        format!(
            "\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}\n\
             spec: {{clusterIP: 10.1.0.7, ports: [{{port: 80}}]}}\n"
        )
    };
    let route = |kind: &str, name: &str, parent: &str| {
        format!(
            "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{parentRefs: [{{group: '', kind: Service, name: {parent}}}], rules: [{{backendRefs: [{{name: web, port: 80}}]}}]}}\n"
        )
    };
    let all = [
        GATE.to_owned(),
        SERVICE.to_owned(),
        service("web", "istio.io/use-waypoint: gate"),
        service("other", ""),
        route("HTTPRoute", "a", "web"),
        route("HTTPRoute", "elsewhere", "other"),
        route("HTTPRoute", "nowhere", "gone"),
        route("GRPCRoute", "b", "web"),
    ];
    // The HTTPRoute at the same port gives way to the GRPCRoute.
    assert_eq!(status(&all.concat()).expect("ours").listeners[0].attached_routes, 1);
    assert_eq!(status(&all[..7].concat()).expect("ours").listeners[0].attached_routes, 1);
    assert_eq!(status(&all[..4].concat()).expect("ours").listeners[0].attached_routes, 0);
    let two = [&all[..7].concat(), &*route("HTTPRoute", "c", "web")].concat();
    assert_eq!(status(&two).expect("ours").listeners[0].attached_routes, 2);
}

#[test]
fn what_a_waypoint_cannot_be_is_refused() {
    let with = |more: &str| {
        let said = status(&[&GATE.replace("spec: {", &format!("spec: {{{more}")), SERVICE, &pod("a", "True")].concat());
        reasons(&said.expect("ours").conditions)
    };
    assert_eq!(
        with("addresses: [{value: 10.0.0.1}], "),
        ["Accepted=false UnsupportedAddress", "Programmed=false Invalid"]
    );
    assert_eq!(
        with("infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: p}}, "),
        ["Accepted=false InvalidParameters", "Programmed=false Invalid"]
    );
    let kinds = GATE.replace("HBONE}", "HBONE, allowedRoutes: {kinds: [{kind: GRPCRoute}, {kind: UDPRoute}]}}");
    let said = &status(&kinds).expect("ours").listeners[0];
    assert_eq!(said.supported_kinds, ["GRPCRoute"]);
    assert_eq!(said.conditions[1].reason, "InvalidRouteKinds");
    let second = GATE.replace("HBONE}", "HBONE}, {name: http, port: 80, protocol: HTTP}");
    let said = &status(&second).expect("ours").listeners[1];
    assert_eq!(said.conditions[0].reason, "UnsupportedProtocol");
}

#[test]
fn what_others_run_is_left_alone() {
    assert_eq!(status(&GATE.replace("leno-waypoint", "nginx")), None);
    let class = |controller: &str, more: &str| {
        let yaml = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: c}}\nspec: {{controllerName: {controller}{more}}}\n"
        );
        match &load(&yaml)[0] {
            Object::GatewayClass(class) => of_class(class).map(|status| reasons(&status.conditions)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(class("istio.io/mesh-controller", ""), None);
    let ours = leno_objects::WAYPOINT_CONTROLLER;
    assert_eq!(class(ours, ""), Some(vec!["Accepted=true Accepted".to_owned()]));
    let parameters = ", parametersRef: {group: '', kind: ConfigMap, name: p, namespace: here}";
    assert_eq!(class(ours, parameters), Some(vec!["Accepted=false InvalidParameters".to_owned()]));
}
