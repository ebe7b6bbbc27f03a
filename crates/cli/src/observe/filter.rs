//! Which connections are shown.

use leno_telemetry::observe::{Connection, Peer};

use crate::args::{FilterArgs, ObjectName};

impl FilterArgs {
    /// Whether a connection is to be shown.
    pub(super) fn fits(&self, connection: &Connection) -> bool {
        let Connection { source, destination, .. } = connection;
        let is = |name: &Option<ObjectName>, test: &dyn Fn(&ObjectName) -> bool| name.as_ref().is_none_or(test);
        is(&self.pod, &|pod| is_pod(source, pod) || is_pod(destination, pod))
            && is(&self.from, &|pod| is_pod(source, pod))
            && is(&self.to, &|name| is_pod(destination, name) || is_service(connection, name))
            && is(&self.service, &|name| is_service(connection, name))
            && self.namespace.as_ref().is_none_or(|namespace| {
                [source, destination].iter().any(|peer| peer.namespace.as_ref() == Some(namespace))
            })
            && self.port.is_none_or(|port| connection.port == Some(port))
            && self.verdict.is_none_or(|verdict| connection.verdict == verdict.into())
            && self.encrypted.is_none_or(|encrypted| connection.encrypted == Some(encrypted))
    }
}

fn is_pod(peer: &Peer, name: &ObjectName) -> bool {
    peer.namespace.as_ref() == Some(&name.namespace)
        && (peer.pod.as_ref() == Some(&name.name) || peer.workload.as_ref() == Some(&name.name))
}

fn is_service(connection: &Connection, name: &ObjectName) -> bool {
    connection
        .service
        .as_deref()
        .and_then(service_name)
        .is_some_and(|found| found == (name.name.as_str(), name.namespace.as_str()))
}

/// Name and namespace of a Service of the cluster, by its host name.
pub(super) fn service_name(host: &str) -> Option<(&str, &str)> {
    let (name, rest) = host.split_once('.')?;
    let (namespace, rest) = rest.split_once('.')?;
    (rest == "svc" || rest.starts_with("svc.")).then_some((name, namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::{connection, named};

    #[test]
    fn all_that_is_given_must_fit() {
        let seen = connection();
        let fits = |change: &dyn Fn(&mut FilterArgs)| {
            let mut filter = FilterArgs::default();
            change(&mut filter);
            filter.fits(&seen)
        };
        assert!(fits(&|_| {}));
        for name in ["web-1", "web", "db-1", "db"] {
            assert!(fits(&|f| f.pod = Some(named("shop", name))), "{name}");
        }
        assert!(!fits(&|f| f.pod = Some(named("other", "web"))));
        assert!(!fits(&|f| f.from = Some(named("shop", "db"))) && fits(&|f| f.from = Some(named("shop", "web"))));
        assert!(fits(&|f| f.to = Some(named("shop", "db-svc"))) && !fits(&|f| f.to = Some(named("shop", "web"))));
        assert!(!fits(&|f| f.service = Some(named("shop", "db"))));
        assert!(fits(&|f| f.namespace = Some("shop".into())) && !fits(&|f| f.namespace = Some("x".into())));
        assert!(fits(&|f| f.port = Some(8080)) && !fits(&|f| f.port = Some(80)));
        assert!(!fits(&|f| f.verdict = Some(crate::args::VerdictArg::Denied)));
        assert!(fits(&|f| f.encrypted = Some(true)) && !fits(&|f| f.encrypted = Some(false)));
    }

    #[test]
    fn a_foreign_host_is_no_service_of_the_cluster() {
        assert_eq!(service_name("db-svc.shop.svc.cluster.local"), Some(("db-svc", "shop")));
        for other in ["db", "www.example.com", "db.shop.svcs.x"] {
            assert_eq!(service_name(other), None, "{other}");
        }
    }
}
