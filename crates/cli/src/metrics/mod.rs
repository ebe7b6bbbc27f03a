//! `leno metrics`: the metrics of node proxies and of the control plane, read where they are.

pub(crate) mod samples;

use leno_local::client::{CONTROL_PLANE, NodePort};
use serde_json::json;

use crate::args::{Format, MetricsArgs};
use crate::output;
use crate::stage::ask;
use crate::target::{Source as _, Target, chosen_proxies};

/// Path of the page, as Istio's proxies have it.
pub(crate) const PATH: &str = "/metrics";

/// `leno metrics`.
pub(crate) fn run(args: &MetricsArgs) -> anyhow::Result<()> {
    ask(async { print(&Target::installed(&args.installed).await?, args).await })
}

async fn print(target: &Target, args: &MetricsArgs) -> anyhow::Result<()> {
    let nodes = match args.node.as_deref() {
        Some(CONTROL_PLANE) => vec![CONTROL_PLANE.to_owned()],
        _ => chosen_proxies(target, args.node.as_slice()).await?,
    };
    let mut pages = Vec::new();
    for node in nodes {
        let page = target.page(&node, NodePort::Metrics, PATH).await;
        let page = page.map_err(|error| error.context(format!("cannot read the metrics of {node}")))?;
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
            output::json(&json!({ "of": target.json(), "nodes": nodes }))
        }
        Format::Text => {
            target.announce();
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
