//! What is to be said of the nodes themselves: whose proxy tells nothing, and what is missing.

use std::collections::BTreeMap;

use leno_telemetry::observe::{Event, Hello};
use serde_json::{Value, json};

use super::stream::What;

/// What is known of each node.
pub(super) struct Notes {
    nodes: BTreeMap<String, Node>,
}

#[derive(Default)]
struct Node {
    hello: Option<Hello>,
    silent: Option<String>,
    missed: u64,
}

impl Notes {
    pub(super) fn new(nodes: &[String]) -> Self {
        Self { nodes: nodes.iter().map(|node| (node.clone(), Node::default())).collect() }
    }

    /// Takes note of what is no connection.
    pub(super) fn note(&mut self, node: &str, what: What) {
        let node = self.nodes.entry(node.to_owned()).or_default();
        match what {
            What::Event(Event::Hello(hello)) => node.hello = Some(hello),
            What::Event(Event::Missed { count }) => node.missed += count,
            What::NoStream(reason) => node.silent = Some(reason),
            What::Event(_) | What::Lost(_) | What::Again | What::End => {}
        }
    }

    /// Whether all have said what they know of the past, or will not.
    ///
    /// # Errors
    /// If no node's proxy tells anything: there is nothing to show.
    pub(super) fn anybody(&self) -> anyhow::Result<()> {
        if self.nodes.values().any(|node| node.silent.is_none()) {
            return Ok(());
        }
        let reasons: Vec<_> = self
            .nodes
            .iter()
            .map(|(name, node)| format!("{name}: {}", node.silent.as_deref().unwrap_or("nothing is known of it")))
            .collect();
        anyhow::bail!("no node's proxy tells of its connections\n  {}", reasons.join("\n  "))
    }

    pub(super) fn json(&self) -> Value {
        let nodes = self.nodes.iter().map(|(name, node)| {
            let hello = node.hello.as_ref();
            json!({
                "node": name,
                "tells": node.silent.is_none(),
                "reason": node.silent,
                "version": hello.map(|hello| &hello.version),
                "keeps": hello.map(|hello| &hello.keeps),
                "forgotten": hello.map(|hello| hello.forgotten),
                "missed": node.missed,
            })
        });
        nodes.collect()
    }

    /// Says on standard error what is missing from what was shown.
    pub(super) fn print(&self) {
        for (name, node) in &self.nodes {
            for text in node.says() {
                eprintln!("{name}: {text}");
            }
        }
    }
}

impl Node {
    fn says(&self) -> Vec<String> {
        let mut says: Vec<String> = self.silent.iter().cloned().collect();
        if let Some(hello) = &self.hello {
            if hello.keeps != "all" {
                says.push(format!(
                    "of connections that ended it keeps {}, as its access log's level says (RUST_LOG)",
                    if hello.keeps == "none" { "none" } else { "only those that failed" }
                ));
            }
            if hello.forgotten > 0 {
                says.push(format!("{} connections ended earlier and are not kept any more", hello.forgotten));
            }
        }
        if self.missed > 0 {
            says.push(format!("{} connections are not shown: there were too many at once", self.missed));
        }
        says
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_tells_nothing_is_named_and_the_others_count() {
        let mut notes = Notes::new(&["node-1".to_owned(), "node-2".to_owned()]);
        notes.note("node-2", What::NoStream("it is a ztunnel".to_owned()));
        assert!(notes.anybody().is_ok());
        assert_eq!(notes.json()[1]["reason"], "it is a ztunnel");
        notes.note("node-1", What::NoStream("it is another".to_owned()));
        let said = notes.anybody().unwrap_err().to_string();
        assert!(said.contains("node-1: it is another") && said.contains("node-2: it is a ztunnel"), "{said}");
    }

    #[test]
    fn what_is_missing_is_told() {
        let hello = Hello { node: "a".into(), version: "1".into(), keeps: "failed".into(), forgotten: 3 };
        let node = Node { hello: Some(hello), silent: None, missed: 2 };
        let says = node.says().join("; ");
        for word in ["only those that failed", "3 connections", "2 connections"] {
            assert!(says.contains(word), "no {word} in {says}");
        }
    }
}
