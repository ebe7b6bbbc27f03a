//! `leno ps` for people.

use std::collections::{BTreeMap, BTreeSet};

use leno_local::{Listing, PassedOverListing, PodListing};

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
    for trouble in &listing.troubles {
        text.push_str(&format!("\n\n{trouble}"));
    }
    if !listing.passed_over.is_empty() {
        text.push_str("\n\nIn the manifests, but not in force:");
        for line in passed_over(&listing.passed_over) {
            text.push_str(&format!("\n  {line}"));
        }
    }
    if !listing.warnings.is_empty() {
        text.push_str("\n\nWarnings:");
        for warning in &listing.warnings {
            text.push_str(&format!("\n  {warning}"));
        }
    }
    if !listing.published.is_empty() {
        let rows: Vec<_> = listing
            .published
            .iter()
            .map(|published| vec![published.address.to_string(), published.service.clone()])
            .collect();
        text.push_str("\n\n");
        text.push_str(&table(&["PUBLISHED", "LEADS TO"], &rows));
    }
    if !listing.refused.is_empty() {
        text.push_str(&format!(
            "\n\nThe newest edit of the files is refused, what was before stays:\n{}",
            listing.refused
        ));
    }
    text
}

/// One line for each thing that is not in force; a field that many objects have is told once, with their names.
fn passed_over(all: &[PassedOverListing]) -> Vec<String> {
    let mut fields: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut lines = Vec::new();
    for one in all {
        match one.field.rsplit('.').next().filter(|field| !field.is_empty()) {
            Some(field) => drop(fields.entry((field, &one.effect)).or_default().insert(&one.object)),
            None => lines.push(format!("{} ({}): {}", one.object, one.place, one.effect)),
        }
    }
    lines.extend(fields.into_iter().map(|((field, effect), objects)| {
        let objects: Vec<_> = objects.into_iter().collect();
        format!("{field} of {}: {effect}", objects.join(", "))
    }));
    lines
}

/// What is different between two listings, a line for each node or pod, in the order of [`text`]'s columns.
pub(crate) fn changes(before: &Listing, now: &Listing) -> Vec<String> {
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let why = |message: &str| if message.is_empty() { String::new() } else { format!(": {message}") };
    let mut lines = Vec::new();
    for node in now.nodes.iter().filter(|node| !before.nodes.contains(node)) {
        let (ready, message) = (yes_no(node.ready), why(&node.message));
        lines.push(format!("{}   ready {ready}   restarts {}{message}", node.name, node.restarts));
    }
    for pod in now.pods.iter().filter(|pod| !before.pods.contains(pod)) {
        let (ready, mesh, message) = (yes_no(pod.ready), yes_no(pod.in_mesh), why(&pod.message));
        lines.push(format!(
            "{}/{}   ready {ready}   {}   restarts {}   mesh {mesh}   {}{message}",
            pod.namespace, pod.name, pod.status, pod.restarts, pod.node
        ));
    }
    let is_gone = |pod: &&PodListing| {
        !now.pods.iter().any(|other| (&other.namespace, &other.name) == (&pod.namespace, &pod.name))
    };
    for pod in before.pods.iter().filter(is_gone) {
        lines.push(format!("{}/{}   gone", pod.namespace, pod.name));
    }
    lines
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
            waypoint: false,
            gateway: String::new(),
            pid: None,
        };
        Listing { pods: names.iter().map(pod).collect(), ..Listing::default() }
    }

    #[test]
    fn warnings_are_listed() {
        let warning = "a.yaml:3: AuthorizationPolicy a/get: no rule is left";
        let listing = Listing { warnings: vec![warning.to_owned()], ..listing(&["web-1"]) };
        assert!(text(&listing).ends_with(&format!("\n\nWarnings:\n  {warning}")), "{}", text(&listing));
    }

    #[test]
    fn what_is_not_in_force_sounds_like_it() {
        let one = |object: &str, field: &str, effect: &str| PassedOverListing {
            place: "a.yaml:1".to_owned(),
            object: object.to_owned(),
            field: field.to_owned(),
            effect: effect.to_owned(),
            pods: Vec::new(),
        };
        let hangs = "a container that hangs is NOT started again";
        let listing = Listing {
            passed_over: vec![
                one("Deployment a/web", "spec.template.spec.containers[0].livenessProbe", hangs),
                one("NetworkPolicy a/deny", "", "traffic is NOT restricted by it"),
                one("Deployment a/db", "spec.template.spec.containers[1].livenessProbe", hangs),
            ],
            ..listing(&["web-1"])
        };
        let text = text(&listing);
        let told = "\n\nIn the manifests, but not in force:\n  NetworkPolicy a/deny (a.yaml:1): traffic is NOT restricted by it\
                    \n  livenessProbe of Deployment a/db, Deployment a/web: a container that hangs is NOT started again";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn what_changed_is_a_line() {
        let (one, two) = (listing(&["web-1"]), listing(&["web-1", "web-2"]));
        assert_eq!(changes(&one, &one), [""; 0]);
        let came = changes(&one, &two);
        assert!(
            came.len() == 1 && came[0].starts_with("a/web-2   ready no   Error   restarts 3   mesh yes   node-1"),
            "{came:?}"
        );
        assert_eq!(changes(&two, &one), ["a/web-2   gone"]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let text = text(&listing(&["web-1"]));
        assert!(text.contains("a/web-1: there is no program \"x\""), "{text}");
        assert!(text.contains("no ") && text.contains("10.0.0.1"), "{text}");
    }
}
