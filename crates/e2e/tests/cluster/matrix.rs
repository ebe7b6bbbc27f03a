//! Who can reach whom, by every way that a program may take.

use std::time::{Duration, Instant};

use leno_e2e::{Answer, Namespace, Pod};

/// An address as URLs have it.
pub(crate) fn in_url(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// A server that can be asked by its Service, its headless Service and its own addresses.
pub(crate) struct Server {
    pub(crate) pod: Pod,
}

impl Server {
    pub(crate) fn new(pod: Pod) -> Self {
        Self { pod }
    }

    /// Its two Services.
    pub(crate) fn services(&self) -> String {
        let name = &self.pod.name;
        self.pod.service(name, false) + &self.pod.service(&format!("{name}-headless"), true)
    }

    /// All ways to it, from any namespace: Service, headless Service, pod address × HTTP, TCP, gRPC.
    pub(crate) fn urls(&self, namespace: &Namespace) -> Vec<String> {
        let name = &self.pod.name;
        let mut hosts = ["", "-headless"].map(|kind| format!("{name}{kind}.{}", namespace.name())).to_vec();
        hosts.extend(namespace.addresses(name).unwrap().into_iter().map(|address| in_url(&address)));
        hosts
            .iter()
            .flat_map(|host| {
                [format!("http://{host}:8080/"), format!("tcp://{host}:9000"), format!("grpc://{host}:9001")]
            })
            .collect()
    }

    /// Waits until a pod can reach it by all of these: after a pod is ready, DNS and the nodes' rules take a moment to know.
    /// Each look asks a pod, which paces this.
    pub(crate) fn await_known(&self, namespace: &Namespace, by: &str, urls: &[String]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answers = namespace.ask(by, urls).unwrap();
            if answers.iter().all(|answer| answer.outcome.is_ok()) {
                return;
            }
            assert!(Instant::now() < deadline, "{by} still can't reach all of {}: {answers:?}", self.pod.name);
        }
    }

    /// Asserts that an answer came, and from this server.
    pub(crate) fn assert_answered(&self, by: &str, answers: &[Answer]) {
        for answer in answers {
            let said = answer.outcome.as_ref().unwrap_or_else(|why| panic!("{by} asked {}: {why}", answer.url));
            let expected = if answer.url.starts_with("grpc:") { "SERVING" } else { &self.pod.name };
            assert!(said.contains(expected), "{by} asked {}: {said}", answer.url);
        }
    }
}
