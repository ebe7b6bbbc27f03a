//! Reads the node proxies' metrics: who talked to whom, how, and who was denied.

use std::collections::BTreeMap;

use crate::metrics::samples::{Sample, samples};

/// Counters of one or several proxies, by name and labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metrics(BTreeMap<Series, f64>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Connections between two workloads, as the destination's proxy saw them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Edge {
    /// SPIFFE id of the caller.
    pub(super) source: String,
    /// SPIFFE id of the callee.
    pub(super) destination: String,
    /// Service it was called by.
    pub(super) service: String,
}

const OPENED: &str = "istio_tcp_connections_opened_total";
const FAILED: &str = "istio_tcp_connections_failed_total";

impl Metrics {
    /// Reads the Prometheus text format. Lines that are not samples are passed over.
    pub(super) fn parse(text: &str) -> Self {
        Self(samples(text).map(|Sample { name, labels, value }| (Series { name, labels }, value)).collect())
    }

    /// Adds another proxy's.
    pub(super) fn add(&mut self, other: Self) {
        for (series, value) in other.0 {
            *self.0.entry(series).or_default() += value;
        }
    }

    /// The counts since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(series, value)| {
                    let old = before.0.get(series).copied().unwrap_or_default();
                    // A counter that went down was started anew, with its process.
                    (series.clone(), if old > *value { *value } else { value - old })
                })
                .collect(),
        )
    }

    /// Connections accepted over mutual TLS.
    pub(super) fn mutual_tls(&self) -> u64 {
        self.sum(OPENED, &[("reporter", "destination"), ("connection_security_policy", "mutual_tls")])
    }

    /// Connections that policy refused.
    pub(super) fn denied(&self) -> u64 {
        self.sum(FAILED, &[("reporter", "destination"), ("response_flags", "DENY")])
    }

    /// Connections accepted over mutual TLS, by source and destination.
    pub(super) fn edges(&self) -> BTreeMap<Edge, u64> {
        let mut edges = BTreeMap::new();
        let wanted = [("reporter", "destination"), ("connection_security_policy", "mutual_tls")];
        for (series, value) in self.matching(OPENED, &wanted).filter(|(_, value)| *value > 0.0) {
            let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
            let edge = Edge {
                source: label("source_principal"),
                destination: label("destination_principal"),
                service: label("destination_service_name"),
            };
            *edges.entry(edge).or_default() += count(value);
        }
        edges
    }

    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.matching(name, labels).map(|(_, value)| count(value)).sum()
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = (&'a Series, f64)> {
        self.0
            .iter()
            .filter(move |(series, _)| {
                series.name == name
                    && labels.iter().all(|(key, value)| series.labels.get(*key).is_some_and(|found| found == value))
            })
            .map(|(series, value)| (series, *value))
    }
}

/// Counters are whole numbers below 2^53 that the text format writes as floats.
fn count(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP istio_tcp_connections_opened TCP connections opened.
# TYPE istio_tcp_connections_opened counter
istio_tcp_connections_opened_total{reporter="source",source_principal="spiffe://a",connection_security_policy="mutual_tls"} 7
istio_tcp_connections_opened_total{reporter="destination",source_principal="spiffe://a",destination_principal="spiffe://b",destination_service_name="b-svc",connection_security_policy="mutual_tls"} 5
istio_tcp_connections_opened_total{reporter="destination",source_principal="unknown",connection_security_policy="unknown"} 3
istio_tcp_connections_failed_total{reporter="destination",response_flags="DENY",odd="a \"quoted\\ }, value"} 2.0 1700000000
istio_build{component="ztunnel"} 1
process_open_fds 11
garbage{
# EOF
"#;

    #[test]
    fn reads_what_is_claimed() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!(metrics.0.len(), 6);
        assert_eq!(metrics.mutual_tls(), 5);
        assert_eq!(metrics.denied(), 2);
        let edge = Edge { source: "spiffe://a".into(), destination: "spiffe://b".into(), service: "b-svc".into() };
        assert_eq!(metrics.edges(), BTreeMap::from([(edge, 5)]));
    }

    #[test]
    fn differences_and_sums() {
        let once = Metrics::parse(TEXT);
        let mut twice = once.clone();
        twice.add(Metrics::parse(TEXT));
        assert_eq!(twice.mutual_tls(), 10);
        assert_eq!(twice.since(&once).mutual_tls(), 5);
        assert_eq!(twice.since(&once).denied(), 2);
        assert!(once.since(&once).edges().is_empty());
        // A restarted proxy.
        assert_eq!(once.since(&twice).mutual_tls(), 5);
    }
}
