//! What a waypoint needs to be a hop: a service for each of the things that a hop does, and the objects that say so.

use serde_json::{Value, json};

use super::pods::NAMESPACE;
use super::step::{Hop, RULE_HEADER, RULE_PATH, route_prefix};

/// Services, and what is done with their requests.
pub(super) const SERVICES: [(&str, Hop); 4] = [
    ("hop-plain", Hop { rule: false, routes: 0, pair: false }),
    ("hop-rule", Hop { rule: true, routes: 0, pair: false }),
    ("hop-100", Hop { rule: false, routes: 100, pair: false }),
    ("hop-5000", Hop { rule: false, routes: 5000, pair: false }),
];
/// The first port at which a waypoint takes connections in the clear.
const PORTS: u16 = 9100;
/// Rules of a route (Gateway API: at most 16).
const RULES: usize = 16;

/// The port in the clear for what a hop does.
pub(crate) fn clear_port(hop: Hop, is_http2: bool) -> u16 {
    let index = SERVICES.iter().position(|(_, known)| *known == hop).unwrap_or(0);
    PORTS + 2 * index as u16 + u16::from(is_http2)
}

/// The Gateway of a service. Each has its own, so that a waypoint has the configuration of what is measured and no more.
pub(super) fn waypoint(service: &str) -> String {
    format!("{service}-waypoint")
}

/// The Gateway for what a hop does.
pub(crate) fn waypoint_of(hop: Hop) -> String {
    waypoint(SERVICES.iter().find(|(_, known)| *known == hop).map_or(SERVICES[0].0, |(name, _)| name))
}

/// Policies and routes of a service.
pub(super) fn objects(service: &str, hop: Hop, port: u16) -> Vec<Value> {
    let metadata = |name: String| json!({ "name": name, "namespace": NAMESPACE });
    let backend = json!([{ "name": service, "port": port }]);
    let route = |name: String, rules: Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": metadata(name),
            "spec": { "parentRefs": [{ "group": "", "kind": "Service", "name": service }], "rules": rules },
        })
    };
    let prefix = |number: usize| json!([{ "path": { "type": "PathPrefix", "value": route_prefix(number) } }]);
    let mut objects = Vec::new();
    for first in (0..hop.routes).step_by(RULES) {
        let numbers = first..hop.routes.min(first + RULES);
        let rules: Vec<Value> =
            numbers.map(|number| json!({ "matches": prefix(number), "backendRefs": backend })).collect();
        objects.push(route(format!("{service}-{first}"), json!(rules)));
    }
    if hop.rule {
        let (name, value) = RULE_HEADER;
        objects.push(json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "AuthorizationPolicy",
            "metadata": metadata(service.to_owned()),
            "spec": {
                "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
                "action": "ALLOW",
                "rules": [{
                    "to": [{ "operation": { "methods": ["GET"], "paths": [format!("{RULE_PATH}*")] } }],
                    "when": [{ "key": format!("request.headers[{name}]"), "values": [value] }],
                }],
            },
        }));
        let filters = json!([{
            "type": "RequestHeaderModifier",
            "requestHeaderModifier": { "add": [{ "name": "x-hop", "value": "lab" }] },
        }]);
        objects.push(route(service.to_owned(), json!([{ "filters": filters, "backendRefs": backend }])));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_a_rule() {
        for (service, hop) in SERVICES {
            let objects = objects(service, hop, 8080);
            let routes = objects.iter().filter(|object| object["kind"] == "HTTPRoute");
            let rules: usize = routes.map(|route| route["spec"]["rules"].as_array().unwrap().len()).sum();
            assert_eq!(rules, hop.routes + usize::from(hop.rule), "{service}");
            assert_eq!(objects.iter().any(|object| object["kind"] == "AuthorizationPolicy"), hop.rule);
        }
        let ports: std::collections::BTreeSet<u16> =
            SERVICES.iter().flat_map(|(_, hop)| [clear_port(*hop, false), clear_port(*hop, true)]).collect();
        assert_eq!(ports.len(), 8);
    }
}
