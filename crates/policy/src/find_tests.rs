use leno_model::{Port, PortName};

use super::*;
use crate::test_support::{endpoint, mesh, pod, service};

#[test]
fn names_people_type() {
    let web = service("web", &["10.96.0.1"]);
    let db = service("db", &[]);
    let client = pod("client", "10.0.0.1");
    let db_1 = endpoint("db-1", "10.0.1.1", &[&db]);
    let mesh = mesh(&[&web, &db], &[&client, &db_1]);
    let at = |address| Destination::from(crate::test_support::at(address));
    let to = |text| find_target(&mesh, &client, text).map(|target| target.destinations);
    assert_eq!(to("default/web:80"), Ok(vec![at("10.96.0.1:80")]));
    assert_eq!(to("default/web.default.svc.cluster.local:80"), Ok(vec![at("10.96.0.1:80")]));
    assert_eq!(to("default/db:5432"), Ok(vec![at("10.0.1.1:5432")]));
    assert_eq!(to("default/db-1:1"), Ok(vec![at("10.0.1.1:1")]));
    let nothing = service("nothing", &[]);
    let unaddressed = Destination::Unaddressed { service: nothing.id.clone(), port: 5432 };
    let with_nothing = crate::test_support::mesh(&[&nothing], &[]);
    assert_eq!(
        find_target(&with_nothing, &client, "default/nothing:5432").map(|target| target.destinations),
        Ok(vec![unaddressed])
    );
    assert_eq!(to("1.2.3.4:5"), Ok(vec![at("1.2.3.4:5")]));
    assert_eq!(to("default/web"), Ok(vec![at("10.96.0.1:80")]), "it has but one port");
    assert!(matches!(to("default/db-1"), Err(LookupError::Port(_))));
    assert!(matches!(to("default/web:0"), Err(LookupError::Port(_))));
    for malformed in ["a/b/c:80", "/web:80", "default/:80", "/:80", ":80", ""] {
        assert!(matches!(to(malformed), Err(LookupError::Form(_))), "{malformed:?}");
    }
    assert_eq!(
        to("default/wbe:80").expect_err("unknown").to_string(),
        "no running pod, Service, Deployment, StatefulSet or Job is called default/wbe; its namespace has client, db, db-1, web"
    );
    let names = |text| find_workloads(&mesh, text).map(|list| list.iter().map(|w| w.name.to_string()).collect());
    assert_eq!(names("default/client"), Ok(vec!["client".to_owned()]));
    assert_eq!(names("default/db"), Ok(vec!["db-1".to_owned()]));
    assert_eq!(names("default/web"), Err(LookupError::Empty("default/web".to_owned())));
    assert!(matches!(names("other/x"), Err(LookupError::Unknown { .. })));
}

#[test]
fn names_as_a_resolver_takes_them() {
    let mut web = service("web", &["10.96.0.1"]);
    web.port_names.push(PortName { name: "http".into(), transport: Transport::Tcp, service_port: 80 });
    let mut dns = service("dns", &["10.96.0.9"]);
    dns.ports = vec![Port { transport: Transport::Udp, ..Port::tcp(53, 53) }, Port::tcp(5300, 53)];
    dns.port_names.push(PortName { name: "query".into(), transport: Transport::Udp, service_port: 53 });
    let db = service("db", &[]);
    let client = pod("client", "10.0.0.1");
    let db_1 = endpoint("db-1", "10.0.1.1", &[&db]);
    let web_1 = Workload { workload_name: "web-deployment".into(), ..endpoint("web-1", "10.0.2.1", &[&web]) };
    let web_2 = Workload { workload_name: "web-deployment".into(), ..endpoint("web-2", "10.0.2.2", &[&web]) };
    let mesh = mesh(&[&web, &dns, &db], &[&client, &db_1, &web_2, &web_1]);
    let to = |text: &str| {
        let target = find_target(&mesh, &client, text).map_err(|error| error.to_string())?;
        let destinations: Vec<_> = target.destinations.iter().map(ToString::to_string).collect();
        Ok::<_, String>((target.transport, destinations.join(" ")))
    };
    let tcp = |addresses: &str| Ok((Transport::Tcp, addresses.to_owned()));
    let udp = |addresses: &str| Ok((Transport::Udp, addresses.to_owned()));
    for name in
        ["web", "web.default", "web.default.svc", "web.default.svc.cluster.local", "web.default.svc.cluster.local."]
    {
        assert_eq!(to(&format!("{name}:80")), tcp("10.96.0.1:80"), "{name}");
        assert_eq!(to(&format!("{name}:http")), tcp("10.96.0.1:80"), "{name}");
    }
    assert_eq!(to("db-1.db.default.svc.cluster.local:5432"), tcp("10.0.1.1:5432"), "a pod of a headless service");
    assert_eq!(to("db-1.db:5432"), tcp("10.0.1.1:5432"), "as a pod's resolver completes it");
    for outside in ["google.com:443", "redis.example.com:6379"] {
        assert!(to(outside).is_err_and(|error| error.contains("is no name of this mesh")), "{outside}");
    }
    for here in ["nobody:80", "nobody.default:80", "kubernetes.other.svc.cluster.local:443"] {
        assert!(to(here).is_err_and(|error| error.contains("is called")), "{here}");
    }
    assert_eq!(to("default/dns:53/udp"), udp("10.96.0.9:53"));
    assert_eq!(to("dns:query/udp"), udp("10.96.0.9:53"));
    assert_eq!(to("dns:53/UDP"), udp("10.96.0.9:53"));
    assert_eq!(to("web:80/tcp"), tcp("10.96.0.1:80"));
    assert_eq!(to("web:80/TCP"), tcp("10.96.0.1:80"));
    assert_eq!(to("dns/udp"), udp("10.96.0.9:53"), "it has but one of UDP");
    assert_eq!(to("1.2.3.4:123/udp"), udp("1.2.3.4:123"));
    assert_eq!(to("default/web-deployment:8080"), tcp("10.0.2.1:8080 10.0.2.2:8080"), "each of a Deployment's pods");
    assert_eq!(to("default/web-deployment:http"), tcp("10.0.2.1:8080 10.0.2.2:8080"), "where the service leads");
    assert_eq!(to("web:https"), Err("\"web:https\": there is no port called https; there are http".to_owned()));
    assert_eq!(
        to("db:https"),
        Err("\"db:https\": there is no port called https; write its number, for no port has a name there".to_owned())
    );
    let names = |text| find_workloads(&mesh, text).map(|list| list.iter().map(|w| w.name.to_string()).collect());
    assert_eq!(names("default/web-deployment"), Ok(vec!["web-1".to_owned(), "web-2".to_owned()]));
    // A Deployment whose Service selects none of its pods.
    let idle = service("idle", &["10.96.0.7"]);
    let idle_1 = Workload { workload_name: "idle".into(), ..pod("idle-1", "10.0.3.1") };
    let with_idle = crate::test_support::mesh(&[&idle], &[&idle_1]);
    let found = find_workloads(&with_idle, "default/idle").map(|found| found[0].name.to_string());
    assert_eq!(found, Ok("idle-1".to_owned()));
}

#[test]
fn a_namespace_is_known_by_its_pods_and_by_its_services() {
    let shop = Service::new("shop", "web", "web.shop.svc.cluster.local");
    let job = Workload { namespace: "jobs".into(), ..pod("job", "10.0.0.2") };
    let client = pod("client", "10.0.0.1");
    let mesh = mesh(&[&shop], &[&client, &job]);
    let error = |text: &str| find_target(&mesh, &client, text).expect_err(text);
    for namespace in ["shop", "jobs", "default"] {
        let unknown = error(&format!("nobody.{namespace}:80"));
        assert!(matches!(unknown, LookupError::Unknown { .. }), "{namespace}: {unknown}");
    }
    assert!(matches!(error("nobody.example:80"), LookupError::Outside(_)));
}

#[test]
fn a_ports_name_is_the_pods_own_port_of_that_name() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports = vec![Port::tcp(80, 0)];
    web.port_names.push(PortName { name: "http".into(), transport: Transport::Tcp, service_port: 80 });
    let pods = [("web-1", "10.0.2.1", 9001), ("web-2", "10.0.2.2", 9002)].map(|(name, address, own)| {
        let mut pod = endpoint(name, address, &[&web]);
        pod.services.insert(web.id.clone(), vec![Port::tcp(80, own)]);
        pod
    });
    let client = pod("client", "10.0.0.1");
    let mesh = mesh(&[&web], &[&client, &pods[0], &pods[1]]);
    for (name, expected) in [("web-1", "10.0.2.1:9001"), ("web-2", "10.0.2.2:9002")] {
        let found = find_target(&mesh, &client, &format!("default/{name}:http")).map(|target| target.destinations);
        assert_eq!(found, Ok(vec![crate::test_support::at(expected).into()]), "{name}");
    }
}
