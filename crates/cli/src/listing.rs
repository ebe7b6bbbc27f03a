//! `leno ps` for people.

use leno_local::Listing;

use crate::output::table;

/// Nodes, pods, and what is wrong with any of them.
pub(crate) fn text(listing: &Listing) -> String {
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let nodes: Vec<_> = listing
        .nodes
        .iter()
        .map(|node| vec![node.name.clone(), yes_no(node.ready), node.restarts.to_string(), node.proxy.clone()])
        .collect();
    let pods: Vec<_> = listing
        .pods
        .iter()
        .map(|pod| {
            vec![
                pod.namespace.clone(),
                pod.name.clone(),
                yes_no(pod.ready),
                pod.status.clone(),
                pod.restarts.to_string(),
                yes_no(pod.in_mesh),
                pod.node.clone(),
                pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            ]
        })
        .collect();
    let mut text = table(&["NODE", "READY", "RESTARTS", "PROXY"], &nodes);
    text.push_str("\n\n");
    if pods.is_empty() {
        text.push_str("no pods");
    } else {
        text.push_str(&table(&["NAMESPACE", "POD", "READY", "STATUS", "RESTARTS", "MESH", "NODE", "IP"], &pods));
    }
    let nodes = listing.nodes.iter().map(|node| (node.name.clone(), &node.message));
    let pods = listing.pods.iter().map(|pod| (format!("{}/{}", pod.namespace, pod.name), &pod.message));
    for (name, message) in nodes.chain(pods).filter(|(_, message)| !message.is_empty()) {
        text.push_str(&format!("\n\n{name}: {message}"));
    }
    if !listing.refused.is_empty() {
        text.push_str(&format!(
            "\n\nThe newest edit of the files is refused, what was before stays:\n{}",
            listing.refused
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use leno_local::PodListing;

    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let pod = |name: &&str| PodListing {
            namespace: "a".to_owned(),
            name: (*name).to_owned(),
            node: "node-1".to_owned(),
            ips: vec!["10.0.0.1".parse().unwrap()],
            in_mesh: true,
            ready: false,
            status: "Error".to_owned(),
            restarts: 3,
            message: "there is no program \"x\"".to_owned(),
            wants_mesh: true,
            netns: String::new(),
            pid: None,
        };
        Listing { pods: names.iter().map(pod).collect(), ..Listing::default() }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let text = text(&listing(&["web-1"]));
        assert!(text.contains("a/web-1: there is no program \"x\""), "{text}");
        assert!(text.contains("no ") && text.contains("10.0.0.1"), "{text}");
    }
}
