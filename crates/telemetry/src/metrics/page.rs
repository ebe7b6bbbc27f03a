//! A page of metrics, in the formats that scrapers ask for.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::process::Process;

/// Content type of [`Page::encode`].
pub const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Content type of [`Page::encode_open_metrics`].
pub const OPEN_METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a process, as they are scraped. Clones share them.
#[derive(Debug, Clone)]
pub struct Page {
    registry: Arc<RwLock<Registry>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    component: String,
    tag: String,
}

impl Page {
    /// A page with what every process has: `istio_build`, with `component` and `tag`, and the process as the kernel
    /// sees it.
    pub fn new(component: &str, tag: &str) -> Self {
        let mut registry = Registry::default();
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels { component: component.to_owned(), tag: tag.to_owned() }).set(1);
        registry.register("istio_build", "What runs", build);
        registry.register_collector(Box::new(Process));
        Self { registry: Arc::new(RwLock::new(registry)) }
    }

    /// Gives access to the registry, for further metrics. Names get no prefix.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write());
    }

    /// All metrics in OpenMetrics text 1.0.
    ///
    /// # Errors
    /// Never, as memory is what is written to.
    pub fn encode_open_metrics(&self) -> Result<String, fmt::Error> {
        let mut body = String::new();
        text::encode(&mut body, &self.registry.read())?;
        Ok(body)
    }

    /// All metrics in Prometheus text 0.0.4, for scrapers that do not ask for OpenMetrics.
    ///
    /// # Errors
    /// Never, as memory is what is written to.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        Ok(to_classic(&self.encode_open_metrics()?))
    }
}

/// The two formats differ in their comments only: here, a counter's family carries the suffix of its samples (else a
/// classic parser takes the samples for untyped ones), and there is neither unit nor end mark. What OpenMetrics calls
/// `unknown` is a counter of a control plane, whose name has no such suffix.
fn to_classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let counter = lines.peek().is_some_and(|next| next.starts_with("# TYPE ") && next.ends_with(" counter"));
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let suffix = if counter { "_total" } else { "" };
            out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
        } else if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            out.extend(["# TYPE ", name, "_total counter\n"]);
        } else if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" unknown")) {
            out.extend(["# TYPE ", name, " counter\n"]);
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            out.extend([line, "\n"]);
        }
    }
    out
}
