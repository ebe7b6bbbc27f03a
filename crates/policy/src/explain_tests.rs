use leno_model::{Action, Match, Rule, StringMatch, TunnelProtocol};

use super::*;
use crate::authorization::{Connection, authorize};
use crate::inbound::inbound_target;
use crate::test_support::{
    at, endpoint, identity, ip, mesh, pod, policy, port, rule, service, waypoint_by_address, waypoint_by_name,
};

fn outside(name: &str, address: &str) -> Workload {
    Workload { tunnel_protocol: TunnelProtocol::None, ..pod(name, address) }
}

fn strict() -> leno_model::Authorization {
    let plaintext = Match { not_principals: vec![StringMatch::Presence], ..Match::default() };
    policy("default/istio_converted_static_strict", Action::Deny, vec![rule(vec![plaintext])])
}

#[test]
fn between_two_pods_of_the_mesh() {
    let web = service("web", &["10.96.0.1"]);
    let client = pod("client", "10.0.0.1");
    let server = Workload { node: "node-2".into(), ..endpoint("web-1", "10.0.1.1", &[&web]) };
    let mut mesh = mesh(&[&web], &[&client, &server]);
    let alice = Match { principals: vec![StringMatch::Suffix("/sa/alice".into())], ..Match::default() };
    mesh.upsert_policy(policy("default/only-alice", Action::Allow, vec![rule(vec![alice])]).into());
    let explanation = explain(&mesh, &client, at("10.96.0.1:80"));
    assert_eq!(explanation.outcome, Outcome::Denied);
    assert_eq!(
        explanation.to_string(),
        "default/client (spiffe://cluster.local/ns/default/sa/client) to 10.96.0.1:80: denied\n  \
         10.96.0.1 is service default/web.default.svc.cluster.local\n  \
         1 endpoint of web can take the connection\n\
         endpoint 10.0.1.1:8080 at default/web-1 on node-2 (spiffe://cluster.local/ns/default/sa/web-1)\n  \
         path: HBONE (mTLS) to 10.0.1.1:15008, asking for 10.0.1.1:8080; the peer must prove to be \
         spiffe://cluster.local/ns/default/sa/web-1\n  \
         on arrival: not allowed: no ALLOW policy of default/web-1 matched (checked default/only-alice): \
         peer is cluster.local/ns/default/sa/client\n    \
         ALLOW default/only-alice: does not match\n"
    );
}

#[test]
fn the_words_are_the_proxys() {
    let client = pod("client", "10.0.0.1");
    let web = pod("web", "10.0.0.9");
    let mut mesh = mesh(&[], &[&client, &web]);
    mesh.upsert_policy(policy("default/no", Action::Deny, vec![Rule::default()]).into());
    let explanation = explain(&mesh, &client, at("10.0.0.9:80"));
    let id = identity("spiffe://cluster.local/ns/default/sa/client");
    let connection = Connection { source: Some(&id), source_ip: ip("10.0.0.1"), destination: at("10.0.0.9:80") };
    let arrival = explanation.endpoints[0].arrival.as_ref().expect("a decision");
    assert_eq!(arrival.verdict, authorize(&mesh, &web, &connection).to_string());
    assert_eq!(arrival.decided_by.as_deref(), Some("default/no"));
    assert_eq!(arrival.policies[0].to_string(), "DENY default/no: matches");
}

#[test]
fn from_outside_the_mesh() {
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_address("10.0.9.9"));
    let client = outside("client", "10.0.0.1");
    let server = endpoint("web-1", "10.0.1.1", &[&web]);
    let mut mesh = mesh(&[&web], &[&client, &server]);
    let open = explain(&mesh, &client, at("10.96.0.1:80"));
    assert_eq!(open.outcome, Outcome::Allowed);
    assert!(open.to_string().contains("its waypoint is not passed"), "{open}");
    mesh.upsert_policy(strict().into());
    let closed = explain(&mesh, &client, at("10.96.0.1:80"));
    assert_eq!(closed.outcome, Outcome::Denied);
    let text = closed.to_string();
    assert!(text.contains("PeerAuthentication requires mTLS): peer has no identity (plaintext)"), "{text}");
    assert!(text.contains("path: plaintext, because the source is not in the mesh"), "{text}");
    assert_eq!(closed.source.identity, None);
    assert_eq!(explain(&mesh, &client, at("10.96.0.1:81")).outcome, Outcome::Refused);
    assert_eq!(explain(&mesh, &client, at("10.0.1.1:81")).outcome, Outcome::Denied);
    assert_eq!(explain(&mesh, &client, at("1.1.1.1:81")).outcome, Outcome::Undecided);
}

#[test]
fn to_a_pod_outside_the_mesh_policies_are_idle() {
    let client = pod("client", "10.0.0.1");
    let old = outside("old", "10.0.0.8");
    let mut mesh = mesh(&[], &[&client, &old]);
    mesh.upsert_policy(strict().into());
    let explanation = explain(&mesh, &client, at("10.0.0.8:80"));
    assert_eq!(explanation.outcome, Outcome::Undecided);
    let text = explanation.to_string();
    assert!(text.contains("plaintext, because the destination is not in the mesh"), "{text}");
    assert!(text.contains("no effect until it is in the mesh: default/istio_converted_static_strict"), "{text}");
}

#[test]
fn a_waypoint_proves_who_it_is_though_nothing_captures_it() {
    let mut service = service("waypoint", &["10.96.0.2"]);
    service.ports = vec![port(15008, 15008)];
    let client = pod("client", "10.0.0.1");
    let gateway = Workload { tunnel_protocol: TunnelProtocol::None, ..endpoint("gateway", "10.0.2.1", &[&service]) };
    let mut web = self::service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&service));
    let mesh = mesh(&[&service, &web], &[&client, &gateway, &endpoint("web-1", "10.0.1.1", &[&web])]);
    for to in ["10.96.0.1:80", "10.0.2.1:15020"] {
        let text = explain(&mesh, &client, at(to)).to_string();
        assert!(text.contains("default/gateway (spiffe://cluster.local/ns/default/sa/gateway)"), "{to}: {text}");
        assert!(!text.contains("not in the mesh"), "{to}: {text}");
    }
}

#[test]
fn through_a_waypoint() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let client = pod("client", "10.0.0.1");
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let server = endpoint("web-1", "10.0.1.1", &[&web]);
    let works = explain(&mesh(&[&web, &waypoint], &[&client, &gateway, &server]), &client, at("10.96.0.1:80"));
    assert_eq!(works.outcome, Outcome::AtWaypoint);
    let text = works.to_string();
    assert!(!text.contains("in the clear"), "{text}");
    assert!(text.contains("goes through waypoint default/waypoint.default.svc.cluster.local"), "{text}");
    assert!(text.contains("asking for 10.96.0.1:80; the waypoint must prove to be"), "{text}");
    let broken = explain(&mesh(&[&web, &waypoint], &[&client, &server]), &client, at("10.96.0.1:80"));
    assert_eq!(broken.outcome, Outcome::Refused);
    assert!(broken.refused.is_some_and(|reason| reason.contains("refused rather than sent around it")));
}

#[test]
fn endpoints_may_differ() {
    let web = service("web", &["10.96.0.1"]);
    let client = pod("client", "10.0.0.1");
    let open = endpoint("a", "10.0.1.1", &[&web]);
    let mut closed = endpoint("b", "10.0.1.2", &[&web]);
    closed.authorization_policies.push(crate::test_support::policy_name("default/later"));
    let explanation = explain(&mesh(&[&web], &[&client, &open, &closed]), &client, at("10.96.0.1:80"));
    assert_eq!(explanation.outcome, Outcome::Mixed);
    assert!(explanation.to_string().contains("default/later: not arrived"), "{explanation}");
}

#[test]
fn ports_of_the_proxy_lead_nowhere() {
    let (client, stranger) = (pod("client", "10.0.0.1"), outside("stranger", "10.0.0.2"));
    let (web, old) = (pod("web", "10.0.0.9"), outside("old", "10.0.0.8"));
    let mesh = mesh(&[], &[&client, &stranger, &web, &old]);
    for port in [15001, 15006, 15008, 15053] {
        for source in [&client, &stranger] {
            let explanation = explain(&mesh, source, at(&format!("10.0.0.9:{port}")));
            assert_eq!(explanation.outcome, Outcome::Refused, "{explanation}");
            let endpoint = &explanation.endpoints[0];
            assert_eq!(endpoint.arrival, None);
            let reason = endpoint.refused.as_deref().expect("a reason");
            assert!(explanation.to_string().contains(&format!("  refused: {reason}\n")), "{explanation}");
            assert!(reason.contains("proxy"), "{reason}");
            assert_eq!(reason.contains("no client certificate"), port == 15008 && source.name == stranger.name);
            // Where there is no proxy these are ports like any other.
            let explanation = explain(&mesh, source, at(&format!("10.0.0.8:{port}")));
            assert_eq!(explanation.outcome, Outcome::Undecided, "{explanation}");
        }
    }
    let explanation = explain(&mesh, &client, at("10.0.0.9:15006"));
    let words = inbound_target(&mesh, &web, "10.0.0.9:15006", at("10.0.0.9:15008")).expect_err("refused").to_string();
    assert_eq!(explanation.endpoints[0].refused.as_deref(), Some(&*words));
}

#[test]
fn machines_read_the_same() {
    // The names of the JSON form are an interface: scripts depend on them.
    let client = pod("client", "10.0.0.1");
    let web = pod("web", "10.0.0.9");
    let mut mesh = mesh(&[], &[&client, &web]);
    mesh.upsert_policy(policy("default/no", Action::Deny, vec![Rule::default()]).into());
    let json = serde_json::to_value(explain(&mesh, &client, at("10.0.0.9:80"))).expect("serialises");
    assert_eq!(json["outcome"], "denied");
    assert_eq!(json["source"]["identity"], "spiffe://cluster.local/ns/default/sa/client");
    let endpoint = &json["endpoints"][0];
    assert_eq!((&endpoint["path"]["kind"], &endpoint["path"]["tunnel"]), (&"hbone".into(), &"10.0.0.9:15008".into()));
    assert_eq!(endpoint["arrival"]["decided_by"], "default/no");
    assert_eq!(endpoint["arrival"]["policies"][0]["action"], "DENY");
}

#[test]
fn a_service_that_nobody_is_behind_is_explained_too() {
    let client = pod("client", "10.0.0.1");
    let stranger = outside("stranger", "10.0.0.2");
    let headless = service("db", &[]);
    let with_vip = service("web", &["10.96.0.1"]);
    let mesh = mesh(&[&headless, &with_vip], &[&client, &stranger]);
    let unaddressed = |port| Destination::Unaddressed { service: headless.id.clone(), port };
    for source in [&client, &stranger] {
        let explanation = explain(&mesh, source, unaddressed(80));
        assert_eq!(explanation.outcome, Outcome::Refused);
        // As with a virtual address, in the words of the access log.
        let words = |name: &str| {
            format!(
                "no healthy endpoint for service default/{name}.default.svc.cluster.local port 80: it has no endpoints; \
                 check its selector or its EndpointSlices"
            )
        };
        assert_eq!(explanation.refused, Some(words("db")));
        assert_eq!(explain(&mesh, source, at("10.96.0.1:80")).refused, Some(words("web")));
        let logged = routing::route(&mesh, &client, at("10.96.0.1:80"), &mut || 0).expect_err("nobody");
        assert_eq!(logged.to_string(), words("web"));
        let text = explanation.to_string();
        assert!(text.contains(" to default/db.default.svc.cluster.local:80: refused\n"), "{text}");
        assert!(explain(&mesh, source, unaddressed(81)).refused.is_some_and(|r| r.contains("has no port 81")));
    }
    let json = serde_json::to_value(explain(&mesh, &client, unaddressed(80))).expect("serialises");
    assert_eq!(json["destination"], "default/db.default.svc.cluster.local:80");
}
