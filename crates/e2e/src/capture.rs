//! What passes the nodes' links, written down for a while and searched for words that must not be there.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::hosts::Hosts;

/// A capture on each of some nodes: of all links in the node's network, so of what pods send to one another through it, on one
/// node or across. What stays inside a pod is not seen. Ends with this value.
///
/// The node's loopback is left out: what a test sends by `kubectl exec` passes there in the clear, between the kubelet and the
/// container runtime.
#[derive(Debug)]
pub struct Capture<'a> {
    hosts: &'a Hosts,
    nodes: Vec<String>,
    file: String,
}

impl<'a> Capture<'a> {
    /// Begins.
    ///
    /// # Errors
    ///
    /// If a node has no `tcpdump`, or it does not start.
    pub fn begin(hosts: &'a Hosts, nodes: &[&str]) -> Result<Self, Error> {
        let file = format!("/run/e2e-capture-{}.pcap", std::process::id());
        let nodes: Vec<_> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let this = Self { hosts, nodes, file };
        let file = &this.file;
        // It says `listening on` when it captures.
        let script = format!(
            "setsid tcpdump -i any -n -U -w {file} 'tcp and not net 127.0.0.0/8 and not host ::1' >/dev/null 2>{file}.log </dev/null & echo $! >{file}.pid
             for _ in $(seq 200); do grep -q 'listening on' {file}.log && exit 0; sleep 0.05; done; cat {file}.log >&2; exit 1"
        );
        for node in &this.nodes {
            hosts.shell(node, &script)?;
        }
        Ok(this)
    }

    /// Returns when a word stands on so many captured lines. The kernel keeps packets for up to a second before it hands them
    /// over, in their order: what passed before these has then been written down, too.
    ///
    /// # Errors
    ///
    /// If a node can't be asked, or after ten seconds, with the number that was there.
    pub fn await_count(&self, word: &str, least: usize) -> Result<usize, Error> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let count = self.count(word)?;
            if count >= least {
                return Ok(count);
            }
            if Instant::now() > deadline {
                return Err(Error::NotCaptured { word: word.to_owned(), seen: count, least });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// On how many captured lines a word stands, of what has been written down yet.
    ///
    /// # Errors
    ///
    /// If a node can't be asked.
    pub fn count(&self, word: &str) -> Result<usize, Error> {
        let script = format!("grep -a -c -F '{word}' {} || true", self.file);
        let counts = self.nodes.iter().map(|node| Ok(self.hosts.shell(node, &script)?.trim().parse().unwrap_or(0)));
        counts.sum()
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let file = &self.file;
        let script = format!("kill $(cat {file}.pid); rm -f {file} {file}.log {file}.pid");
        for node in &self.nodes {
            // A node that was rebooted has neither.
            let _ = self.hosts.shell(node, &script);
        }
    }
}
