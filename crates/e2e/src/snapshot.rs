//! What an installation could leave behind in a cluster and on its nodes, read at two moments and compared.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::hosts::Hosts;

/// Lines by the place where they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    places: BTreeMap<String, BTreeSet<String>>,
}

/// Cluster-wide kinds that an installation makes or changes.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,priorityclasses,\
                     validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,\
                     validatingadmissionpolicybindings";

/// Prints all that a mesh may change on a node. The rules of kube-proxy and of the network plugin follow the cluster's Services
/// and pods, so of their tables only the names count.
const NODE: &str = r#"
nft list tables
nft list tables | grep -v kube-proxy | while read -r _ family name; do
  nft list table "$family" "$name" | grep -i -e leno -e istio -e 0x539 -e ':1500'
done
ip rule
ip -6 rule
for directory in /etc/cni/net.d /opt/cni/bin /var/lib/leno /var/run/leno /var/run/ztunnel; do
  [ -e "$directory" ] || continue
  find "$directory"
  find "$directory" -type f -exec sha256sum {} +
done
"#;

/// Prints the rules, routing rules and listening sockets in the network namespace of each pod.
const PODS: &str = r#"
for pod in /var/run/netns/*; do
  [ -e "$pod" ] || continue
  nsenter --net="$pod" sh -c 'nft list ruleset; ip rule; ip -6 rule; cat /proc/net/tcp /proc/net/tcp6 | while read -r _ local _ state _; do [ "$state" = 0A ] && echo "listens at $local"; done; :'
done
"#;

impl Snapshot {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// If the cluster or a node can't be read. Nodes need `nft`, `ip` and `nsenter`.
    pub fn take(cluster: &Cluster, hosts: &Hosts) -> Result<Self, Error> {
        let mut places = BTreeMap::new();
        let objects = cluster.kubectl().run(&["get", KINDS, "--output=name"])?;
        places.insert("the cluster".to_owned(), lines(&objects).filter(|line| !line.contains("/e2e-")).collect());
        let labels = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.labels} \
                      {.metadata.annotations}{\"\\n\"}{end}";
        let labelled = cluster.kubectl().run(&["get", "nodes,namespaces", "--output", labels])?;
        places.insert("labels".to_owned(), lines(&labelled).filter(|line| !line.contains("/e2e-")).collect());
        let pods = cluster.kubectl().run(&["get", "pods", "--all-namespaces", "--output", labels])?;
        places.insert("pods".to_owned(), lines(&pods).collect());
        for node in hosts.nodes() {
            places.insert(format!("node {node}"), lines(&hosts.shell(node, NODE)?).collect());
            places.insert(format!("pods' namespaces on {node}"), lines(&hosts.shell(node, PODS)?).collect());
        }
        Ok(Self { places })
    }

    /// What is there now and was not before, and what is there no more.
    pub fn changes(&self, after: &Self) -> Vec<String> {
        let none = BTreeSet::new();
        let mut changes = Vec::new();
        for place in self.places.keys().chain(after.places.keys()).collect::<BTreeSet<_>>() {
            let [then, now] = [self, after].map(|snapshot| snapshot.places.get(place).unwrap_or(&none));
            changes.extend(now.difference(then).map(|line| format!("{place}: there is now {line}")));
            changes.extend(then.difference(now).map(|line| format!("{place}: gone is {line}")));
        }
        changes
    }
}

fn lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_and_what_went_are_told() {
        let snapshot = |lines: &[&str]| Snapshot {
            places: [("n1".to_owned(), lines.iter().map(|line| (*line).to_owned()).collect())].into(),
        };
        let (before, after) = (snapshot(&["a", "b"]), snapshot(&["b", "c"]));
        assert_eq!(before.changes(&after), ["n1: there is now c", "n1: gone is a"]);
        assert!(before.changes(&before).is_empty());
    }
}
