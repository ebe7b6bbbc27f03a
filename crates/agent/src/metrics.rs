//! What the agent counts.

use leno_telemetry::metrics::Page;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// What a plugin asked for, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) command: &'static str,
    pub(crate) result: &'static str,
}

/// What was put right.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RepairLabels {
    pub(crate) what: &'static str,
}

/// The agent's own metrics. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct AgentMetrics {
    /// Pods that should be captured.
    pub(crate) wanted: Gauge,
    /// Pods that are captured and that a proxy has acknowledged.
    pub(crate) captured: Gauge,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) repairs: Family<RepairLabels, Counter>,
    /// Seconds of a pod's start that its capture takes.
    pub(crate) delay: Histogram,
}

impl AgentMetrics {
    pub(crate) fn register(page: &Page) -> Self {
        let buckets = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
        let own = Self {
            wanted: Gauge::default(),
            captured: Gauge::default(),
            requests: Family::default(),
            repairs: Family::default(),
            delay: Histogram::new(buckets),
        };
        page.register(|registry| {
            registry.register(
                "leno_agent_pods_wanted",
                "Pods of this node that are to be in the mesh",
                own.wanted.clone(),
            );
            registry.register(
                "leno_agent_pods_captured",
                "Pods of this node that are captured and acknowledged by the node proxy",
                own.captured.clone(),
            );
            registry.register("leno_agent_cni_requests", "Requests of the CNI plugin", own.requests.clone());
            registry.register(
                "leno_agent_repairs",
                "Rules, listeners or files that were not as they should be, and were put right",
                own.repairs.clone(),
            );
            registry.register(
                "leno_agent_capture_duration_seconds",
                "How long the start of a pod waits for its capture",
                own.delay.clone(),
            );
        });
        own
    }

    pub(crate) fn request(&self, command: &'static str, result: &'static str) {
        self.requests.get_or_create(&RequestLabels { command, result }).inc();
    }

    pub(crate) fn repaired(&self, what: &'static str) {
        self.repairs.get_or_create(&RepairLabels { what }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what the chart's dashboard asks for, the agent's part; `leno-telemetry` tests the rest.
    #[test]
    fn every_metric_of_the_agent_in_the_dashboard_exists_with_its_labels() {
        let page = Page::new("agent", "leno-1");
        let metrics = AgentMetrics::register(&page);
        metrics.request("add", "captured");
        metrics.repaired("rules");
        metrics.delay.observe(0.1);
        let page = page.encode().unwrap();
        let dashboard = include_str!("../../../charts/leno/templates/dashboard.yaml");
        let words: Vec<_> =
            dashboard.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).collect();
        let names: Vec<_> = words.iter().filter(|word| word.starts_with("leno_agent_")).collect();
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            assert!(
                page.lines()
                    .any(|line| line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}{{"))),
                "{name}"
            );
        }
        for (name, labels) in
            [("leno_agent_repairs_total", ["what", "what"]), ("leno_agent_cni_requests_total", ["command", "result"])]
        {
            assert!(dashboard.contains(name));
            let line = page.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
            assert!(labels.iter().all(|label| line.contains(&format!("{label}=\""))), "{line}");
        }
    }
}
