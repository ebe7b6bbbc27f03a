//! `leno ps` for people.

use leno_local::{Listing, PodListing};

use crate::args::ObjectName;
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
        text.push_str(&format!("\n\nThe newest edit of the files is refused, what was before stays:\n{}", listing.refused));
    }
    text
}

/// The pod that is meant: by its name, or by the beginning of it (its Deployment's name) where
/// that is enough. A name that fits nothing is left as it is, for the stage to refuse.
pub(crate) fn pod(listing: &Listing, meant: &ObjectName) -> anyhow::Result<ObjectName> {
    let of_namespace = |pod: &&PodListing| pod.namespace == meant.namespace;
    if listing.pods.iter().filter(of_namespace).any(|pod| pod.name == meant.name) {
        return Ok(meant.clone());
    }
    let prefix = format!("{}-", meant.name);
    let fitting: Vec<_> =
        listing.pods.iter().filter(of_namespace).filter(|pod| pod.name.starts_with(&prefix)).collect();
    match fitting.as_slice() {
        [] => Ok(meant.clone()),
        [one] => Ok(ObjectName { namespace: meant.namespace.clone(), name: one.name.clone() }),
        many => {
            let names: Vec<_> = many.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
            anyhow::bail!("{meant} may be any of {}; write the whole name", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn a_beginning_is_enough_where_it_is_one_pods() {
        let listing = listing(&["web-1", "web-2", "webber-1", "db-1"]);
        let meant = |name: &str| ObjectName { namespace: "a".to_owned(), name: name.to_owned() };
        let found = |name: &str| pod(&listing, &meant(name)).map(|found| found.name);
        assert_eq!(found("web-2").unwrap(), "web-2");
        assert_eq!(found("db").unwrap(), "db-1");
        assert_eq!(found("webber").unwrap(), "webber-1");
        assert_eq!(found("other").unwrap(), "other");
        let many = found("web").unwrap_err().to_string();
        assert!(many.contains("a/web-1, a/web-2") && !many.contains("webber"), "{many}");
    }

    #[test]
    fn what_is_wrong_is_told() {
        let text = text(&listing(&["web-1"]));
        assert!(text.contains("a/web-1: there is no program \"x\""), "{text}");
        assert!(text.contains("no ") && text.contains("10.0.0.1"), "{text}");
    }
}
