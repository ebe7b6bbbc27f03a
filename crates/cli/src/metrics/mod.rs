//! `leno metrics`: the metrics of node proxies, read where they are.

pub(crate) mod samples;

use leno_local::client::NodePort;
use serde_json::json;

use crate::args::{Format, MetricsArgs};
use crate::observe::source::{Source, StageNodes, chosen};
use crate::{output, proxy_page};

/// Path of the page, as Istio's proxies have it.
pub(crate) const PATH: &str = "/metrics";

/// `leno metrics`.
pub(crate) fn run(args: &MetricsArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(print(&StageNodes(args.stage.name.clone()), args))
}

async fn print<S: Source>(source: &S, args: &MetricsArgs) -> anyhow::Result<()> {
    let nodes = chosen(source, args.node.as_slice()).await?;
    let mut pages = Vec::new();
    for node in nodes {
        let page = async { proxy_page::get(source.dial(&node, NodePort::Metrics).await?, PATH).await };
        let page = page.await.map_err(|error| error.context(format!("cannot read the metrics of {node}'s proxy")))?;
        pages.push((node, page));
    }
    match args.output.output {
        Format::Json => {
            let nodes: Vec<_> = pages
                .iter()
                .map(|(node, page)| {
                    let wanted = samples::samples(page).filter(|sample| sample.name.starts_with(&args.metric));
                    json!({ "node": node, "metrics": wanted.collect::<Vec<_>>() })
                })
                .collect();
            output::json(&json!({ "nodes": nodes }))
        }
        Format::Text => {
            let several = pages.len() > 1;
            let mut text = String::new();
            for (node, page) in &pages {
                if several {
                    text.push_str(&format!("# node {node}\n"));
                }
                for line in page.lines().filter(|line| name_of(line).starts_with(&args.metric)) {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            output::bytes(text.as_bytes())
        }
    }
}

/// The metric that a line of a page is about.
fn name_of(line: &str) -> &str {
    let words = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
    words.split(['{', ' ']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_about_one_metric() {
        for line in ["# HELP a_b_total What.", "# TYPE a_b_total counter", "a_b_total{x=\"y\"} 1", "a_b_total 1"] {
            assert_eq!(name_of(line), "a_b_total", "{line}");
        }
    }
}
