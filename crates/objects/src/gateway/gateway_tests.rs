use super::*;
use crate::{Decoded, Kind, Mode, Object, decode};

fn read(kind: Kind, mode: Mode, yaml: &str) -> Result<Decoded, String> {
    serde_saphyr::with_deserializer_from_str(yaml, |from| decode(kind, mode, from)).map_err(|e| e.to_string())
}

fn gateway(yaml: &str) -> Gateway {
    match read(Kind::Gateway, Mode::Strict, yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}")).object {
        Object::Gateway(gateway) => gateway,
        other => panic!("{other:?}"),
    }
}

fn class(controller: &str, waypoint_for: &str) -> GatewayClass {
    let yaml = format!(
        "metadata: {{name: c, labels: {{istio.io/waypoint-for: {waypoint_for}}}}}\nspec: {{controllerName: {controller}}}"
    );
    match read(Kind::GatewayClass, Mode::Strict, &yaml).expect(&yaml).object {
        Object::GatewayClass(class) => class,
        other => panic!("{other:?}"),
    }
}

/// A waypoint with these labels, class and further lines of its listener.
fn waypoint(labels: &str, class: &str, listener: &str) -> String {
    format!(
        "metadata: {{name: w, namespace: shop, labels: {{{labels}}}}}\nspec:\n  gatewayClassName: {class}\n  listeners:\n  \
         - name: mesh\n    port: 15008\n    protocol: HBONE\n{listener}"
    )
}

#[test]
fn a_waypoint_as_users_write_it() {
    let plain = gateway(&waypoint("", WAYPOINT_CLASS, ""));
    assert!(plain.is_waypoint(None));
    assert_eq!(plain.waypoint_for(None), Ok(WaypointFor::Service));
    let listener = plain.hbone_listener().expect("a listener");
    assert_eq!((listener.name.as_str(), listener.allowed_routes.namespaces.from), ("mesh", FromNamespaces::Same));
    let labelled = gateway(&waypoint("istio.io/waypoint-for: all", ISTIO_WAYPOINT_CLASS, ""));
    assert_eq!(labelled.waypoint_for(None), Ok(WaypointFor::All));
}

#[test]
fn the_class_decides_whose_gateway_it_is() {
    let ours = class(WAYPOINT_CONTROLLER, "workload");
    let istios = class("istio.io/mesh-controller", "all");
    let named = gateway(&waypoint("", "other", ""));
    assert!(!named.is_waypoint(None), "nobody says that this class is one of waypoints");
    assert!(named.is_waypoint(Some(&ours)) && !named.is_waypoint(Some(&istios)));
    assert_eq!(named.waypoint_for(Some(&ours)), Ok(WaypointFor::Workload), "the class's word");
    let own = gateway(&waypoint("istio.io/waypoint-for: none", "other", ""));
    assert_eq!(own.waypoint_for(Some(&ours)), Ok(WaypointFor::None), "its own word goes first");
    assert!(gateway(&waypoint("", ISTIO_WAYPOINT_CLASS, "")).is_waypoint(None));
    assert!(!gateway(&waypoint("", ISTIO_WAYPOINT_CLASS, "")).is_waypoint(Some(&istios)), "it is Istio's to run");
}

#[test]
fn who_may_attach() {
    let allowed = |from: &str| {
        let listener = format!("    allowedRoutes: {{namespaces: {from}}}\n");
        let gateway = gateway(&waypoint("", WAYPOINT_CLASS, &listener));
        let namespaces = gateway.spec.listeners[0].allowed_routes.namespaces.clone();
        let paid = Labels::from_iter([("tier".into(), "paid".into())]);
        [("shop", &Labels::new()), ("bank", &Labels::new()), ("bank", &paid)]
            .map(|(namespace, labels)| namespaces.allow("shop", namespace, labels))
    };
    assert_eq!(allowed("{}"), [true, false, false]);
    assert_eq!(allowed("{from: All}"), [true, true, true]);
    assert_eq!(allowed("{from: None}"), [false, false, false]);
    assert_eq!(allowed("{from: Selector, selector: {matchLabels: {tier: paid}}}"), [false, false, true]);
    assert_eq!(allowed("{from: Selector, selector: {}}"), [true, true, true], "an empty selector selects all");
}

#[test]
fn mistakes_are_refused_with_their_path() {
    for (yaml, words) in [
        (waypoint("", WAYPOINT_CLASS, "    prot: x\n"), "unknown field spec.listeners[0].prot"),
        (waypoint("istio.io/waypoint-for: servce", WAYPOINT_CLASS, ""), "possible are: service, workload, all, none"),
        (
            waypoint("", WAYPOINT_CLASS, "").replace("15008", "15009"),
            "spec.listeners: a waypoint needs a listener with protocol: HBONE and port: 15008",
        ),
        (waypoint("", WAYPOINT_CLASS, "").replace("HBONE", "HBON"), "unknown protocol \"HBON\"; did you mean HBONE?"),
        (
            waypoint("", WAYPOINT_CLASS, "  - {name: mesh, port: 1, protocol: TCP}\n"),
            "spec.listeners[1].name: listener name \"mesh\" is already used by [0]",
        ),
        (
            waypoint("", WAYPOINT_CLASS, "  - {name: b, port: 15008, protocol: HBONE}\n"),
            "port 15008 with this protocol and hostname is listed twice",
        ),
        (
            waypoint("", WAYPOINT_CLASS, "    allowedRoutes: {namespaces: {from: Selector}}\n"),
            "allowedRoutes.namespaces.selector: is required by from: Selector",
        ),
        (
            waypoint("", WAYPOINT_CLASS, "    allowedRoutes: {namespaces: {from: Any}}\n"),
            "allowedRoutes.namespaces.from: unknown value \"Any\"",
        ),
        ("metadata: {name: w}\nspec: {gatewayClassName: x}".to_owned(), "spec.listeners is required"),
        ("metadata: {name: w}\nspec: {gatewayClassName: x, listeners: []}".to_owned(), "needs 1 to 64 listeners"),
    ] {
        let error = read(Kind::Gateway, Mode::Strict, &yaml).expect_err(&yaml);
        assert!(error.contains(words), "{yaml}\n{error}\nlacks {words}");
    }
    let error = read(Kind::GatewayClass, Mode::Strict, "metadata: {name: c}\nspec: {controllerName: leno}");
    assert!(error.is_err_and(|error| error.contains("a domain and a path")));
}

/// All fields of the API's definition that mean nothing to a waypoint are known, and a file's author is told of them.
#[test]
fn what_a_waypoint_does_not_honour_is_said() {
    let yaml = waypoint("", WAYPOINT_CLASS, "    tls: {mode: Terminate}\n")
        + "  addresses: [{type: Hostname, value: a.example}]\n  defaultScope: All\n  tls: {frontend: {default: {}}}\n  \
           allowedListeners: {namespaces: {from: All}}\n  infrastructure:\n    labels: {a: b}\n    \
           parametersRef: {group: \"\", kind: ConfigMap, name: p}\n";
    let decoded = read(Kind::Gateway, Mode::Strict, &yaml).expect("known fields");
    let mut said: Vec<_> = decoded.not_in_force.iter().map(|field| field.path.as_str()).collect();
    said.sort_unstable();
    assert_eq!(said, ["spec.allowedListeners", "spec.defaultScope", "spec.listeners[0].tls", "spec.tls"]);
    let Object::Gateway(gateway) = decoded.object else { panic!("a Gateway") };
    assert_eq!(gateway.spec.addresses[0].kind, "Hostname");
    assert_eq!(gateway.spec.infrastructure.parameters_ref.expect("given").name, "p");
}

#[test]
fn an_api_server_may_know_more() {
    let yaml = waypoint("istio.io/waypoint-for: newer", WAYPOINT_CLASS, "    newer: 1\n    hostname: null\n");
    let decoded = read(Kind::Gateway, Mode::Lenient, &yaml).expect("lenient");
    assert_eq!(decoded.warnings.len(), 2, "{:?}", decoded.warnings);
    let Object::Gateway(gateway) = decoded.object else { panic!("a Gateway") };
    assert_eq!(gateway.waypoint_for(None), Err("newer"), "whoever translates must not take it for another word");
}
