//! Explanations as text for a terminal, in which what is equal is told once: a Service of two hundred pods is one screen.

use std::fmt::Write as _;

use crate::explain::{EndpointExplanation, Explanation};

/// How many of those that are alike are named.
const NAMED: usize = 5;

/// Explanations of one question, to each address that it may have meant. Of those that say the same only the first one is
/// written, with the addresses of the others.
pub fn text(explanations: &[Explanation]) -> String {
    let mut out = String::new();
    for group in groups(explanations, alike) {
        let [first, others @ ..] = &group[..] else { continue };
        let _ = write!(out, "{first}");
        if !others.is_empty() {
            let _ = writeln!(out, "the same to {}", listed(others.iter().map(|other| other.destination.to_string())));
        }
    }
    out
}

/// The endpoints of one explanation.
pub(crate) fn endpoints(endpoints: &[EndpointExplanation]) -> String {
    let mut out = String::new();
    for group in groups(endpoints, |endpoint| endpoint_alike(endpoint, &endpoint.to_string())) {
        let [first, others @ ..] = &group[..] else { continue };
        let _ = write!(out, "{first}");
        if !others.is_empty() {
            let named = others.iter().map(|other| match &other.workload {
                Some(workload) => format!("{} ({})", workload.workload, other.address),
                None => other.address.to_string(),
            });
            let _ = writeln!(out, "  the same at {}", listed(named));
        }
    }
    out
}

/// Things with equal keys together, in the order in which the first of each came.
fn groups<T>(all: &[T], key: impl Fn(&T) -> String) -> Vec<Vec<&T>> {
    let mut found: Vec<(String, Vec<&T>)> = Vec::new();
    for one in all {
        let key = key(one);
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(one),
            None => found.push((key, vec![one])),
        }
    }
    found.into_iter().map(|(_, group)| group).collect()
}

/// The text of an explanation without what names its destination.
fn alike(explanation: &Explanation) -> String {
    let mut text = explanation.to_string();
    let beyond = explanation.at_waypoint.iter().flat_map(|at| &at.backends).flat_map(|backend| &backend.endpoints);
    for endpoint in explanation.endpoints.iter().chain(beyond) {
        text = endpoint_alike(endpoint, &text);
    }
    let destination = explanation.destination.to_string();
    text = text.replace(&destination, "D");
    match destination.parse::<std::net::SocketAddr>() {
        Ok(address) => text.replace(&address.ip().to_string(), "D"),
        Err(_) => text,
    }
}

/// A text about an endpoint without what only it has: its name, its address and its node.
fn endpoint_alike(endpoint: &EndpointExplanation, text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(party) = &endpoint.workload {
        if !party.node.is_empty() {
            text = text.replace(&format!("{} on {}", party.workload, party.node), &party.workload);
        }
        text = text.replace(&party.workload, "W");
    }
    let ip = endpoint.address.ip();
    let bracketed = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    text.replace(&bracketed, "A").replace(&ip.to_string(), "A")
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let shown = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{TunnelProtocol, Workload};

    use super::*;
    use crate::explain::explain;
    use crate::test_support::{at, endpoint, mesh, pod, service};

    #[test]
    fn two_hundred_pods_are_one_screen() {
        let web = service("web", &["10.96.0.1"]);
        let client = pod("client", "10.0.0.1");
        let mut pods: Vec<Workload> = (0..200)
            .map(|n| Workload {
                service_account: "web".into(),
                node: format!("node-{}", n % 3).into(),
                ..endpoint(&format!("web-{n:03}"), &format!("10.1.{}.{}", n / 100, n % 100 + 1), &[&web])
            })
            .collect();
        // One differs.
        pods[150].tunnel_protocol = TunnelProtocol::None;
        let all: Vec<&Workload> = std::iter::once(&client).chain(&pods).collect();
        let explanation = explain(&mesh(&[&web], &all), &client, at("10.96.0.1:80"));
        assert_eq!(explanation.endpoints.len(), 200, "programs are told all");
        let text = explanation.to_string();
        assert!(text.lines().count() < 20, "{text}");
        let told = "the same at default/web-001 (10.1.0.2:8080), default/web-002 (10.1.0.3:8080), default/web-003 \
                    (10.1.0.4:8080), default/web-004 (10.1.0.5:8080), default/web-005 (10.1.0.6:8080) and 193 more";
        assert!(text.contains(told), "{text}");
        assert!(
            text.contains("default/web-150") && text.contains("because the destination is not in the mesh"),
            "{text}"
        );
    }

    #[test]
    fn addresses_that_say_the_same_are_listed() {
        let db = service("db", &[]);
        let client = pod("client", "10.0.0.1");
        let mut pods: Vec<Workload> = (1..=3)
            .map(|n| Workload {
                service_account: "db".into(),
                ..endpoint(&format!("db-{n}"), &format!("10.0.1.{n}"), &[&db])
            })
            .collect();
        pods[2].service_account = "other".into();
        let all: Vec<&Workload> = std::iter::once(&client).chain(&pods).collect();
        let mesh = mesh(&[&db], &all);
        let explanations: Vec<_> = (1..=3).map(|n| explain(&mesh, &client, at(&format!("10.0.1.{n}:8080")))).collect();
        let text = text(&explanations);
        assert_eq!(text.matches(": allowed\n").count(), 2, "{text}");
        assert!(text.contains("the same to 10.0.1.2:8080\n") && text.contains("db-3"), "{text}");
    }
}
