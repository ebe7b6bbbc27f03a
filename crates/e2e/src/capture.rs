//! What passes the nodes' links, written down for a while and searched for words that must not be there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::hosts::Hosts;

/// How long a capture may take to write down what has passed, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A capture on each of some nodes: of all links in the node's network, so of what pods send to one another through it, on one
/// node or across. What stays inside a pod is not seen. Ends with this value.
///
/// The node's loopback is left out: what a test sends by `kubectl exec` passes there in the clear, between the kubelet and the
/// container runtime.
///
/// That a word is not found means something only if the capture would have found it. So a capture that has ended, can't be read
/// or has missed packets is an error, and it is for the test to send a word that must be found ([`Capture::await_each`]).
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = format!("/run/e2e-capture-{}-{}.pcap", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut nodes: Vec<_> = nodes.iter().map(|node| (*node).to_owned()).collect();
        // A cluster of one node has it twice.
        nodes.dedup();
        let this = Self { hosts, nodes, file };
        let file = &this.file;
        // It says `listening on` when it captures. With the usual 2 MiB it drops what comes while it waits for a processor.
        let script = format!(
            "setsid tcpdump -i any -n -U -B 32768 -w {file} 'tcp and not net 127.0.0.0/8 and not host ::1' >/dev/null 2>{file}.log </dev/null & echo $! >{file}.pid
             for _ in $(seq 1200); do grep -q 'listening on' {file}.log && exit 0; sleep 0.05; done; cat {file}.log >&2; exit 1"
        );
        this.on_each(&script)?;
        Ok(this)
    }

    /// Returns when a word stands on so many captured lines. The kernel keeps packets for up to a second before it hands them
    /// over, in their order: what passed before these has then been written down, too.
    ///
    /// # Errors
    ///
    /// If a node can't be asked or captures no more, or after a minute, with the number that was there.
    pub fn await_count(&self, word: &str, least: usize) -> Result<usize, Error> {
        self.await_counts(word, |counts| counts.iter().sum(), least)
    }

    /// Returns when a word stands on a captured line of every node: none of them is blind, and what passed before has been
    /// written down on all.
    ///
    /// # Errors
    ///
    /// As [`Capture::await_count`], with the number of the node that has the least.
    pub fn await_each(&self, word: &str) -> Result<(), Error> {
        self.await_counts(word, |counts| counts.iter().copied().min().unwrap_or_default(), 1).map(drop)
    }

    fn await_counts(&self, word: &str, of: impl Fn(&[usize]) -> usize, least: usize) -> Result<usize, Error> {
        let deadline = Instant::now() + PATIENCE;
        let script = still_captures(&self.file) + &search(&self.file, word);
        loop {
            let count = of(&self.counts(&script)?);
            if count >= least {
                return Ok(count);
            }
            if Instant::now() > deadline {
                return Err(Error::NotCaptured { word: word.to_owned(), seen: count, least });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it, and returns on how many captured lines each of these words stands.
    ///
    /// # Errors
    ///
    /// If a node can't be asked, or its capture had ended before or has missed packets.
    pub fn end(self, words: &[&str]) -> Result<Vec<usize>, Error> {
        self.on_each(&end(&self.file))?;
        words.iter().map(|word| Ok(self.counts(&search(&self.file, word))?.iter().sum())).collect()
    }

    /// The number that a script prints on each node.
    fn counts(&self, script: &str) -> Result<Vec<usize>, Error> {
        let printed = self.on_each(script)?;
        let numbers = self.nodes.iter().zip(printed).map(|(node, printed)| {
            printed.trim().parse().map_err(|_| Error::NoCount { node: node.clone(), said: printed.clone() })
        });
        numbers.collect()
    }

    /// What a script prints on each node, at the same time.
    fn on_each(&self, script: &str) -> Result<Vec<String>, Error> {
        self.hosts.on_each(&self.nodes, |node| self.hosts.shell(node, script))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let file = &self.file;
        let script = format!("kill $(cat {file}.pid); rm -f {file} {file}.log {file}.pid");
        // A node that was rebooted has neither.
        let _ = self.on_each(&script);
    }
}

/// A script that fails if the capture has ended: then it has written down nothing since. A process that nobody has waited for has no
/// command line any more.
fn still_captures(file: &str) -> String {
    format!(
        "tr '\\0' ' ' </proc/$(cat {file}.pid)/cmdline | grep -q . || {{ echo \"the capture has ended: $(cat {file}.log)\" >&2; exit 9; }}\n"
    )
}

/// A script that prints on how many lines a word stands. It fails if it can't look.
fn search(file: &str, word: &str) -> String {
    // grep's 1 means that there is none.
    format!("grep -a -c -F -e '{word}' {file} || [ $? -eq 1 ]")
}

/// A script that ends the capture. It fails if that had ended before, or has missed packets: its last lines say how many, and it has
/// none of these if it was killed.
fn end(file: &str) -> String {
    format!(
        "kill -INT $(cat {file}.pid) || {{ cat {file}.log >&2; exit 1; }}
         for _ in $(seq 1200); do grep -q 'dropped by kernel' {file}.log && break; sleep 0.05; done
         grep -q '^0 packets dropped by kernel' {file}.log && ! grep -q 'dropped by interface' {file}.log || {{ cat {file}.log >&2; exit 1; }}"
    )
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
