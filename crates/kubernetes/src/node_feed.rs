//! What an agent of one node must know: the node's pods, and all namespaces.

use std::sync::Arc;

use leno_objects::{Change, Kind, Object};
use leno_telemetry::{Readiness, ReadyTask};

use crate::Client;
use crate::reflector::{Reflector, Sink};

/// Hears of the objects that a [`NodeFeed`] follows.
pub trait Listener {
    /// These are all objects of this kind. Others that were known are gone.
    fn all(&self, kind: Kind, objects: Vec<Arc<Object>>);
    /// These have changed.
    fn changed(&self, changes: Vec<Change>);
}

/// Follows the pods of one node, and all namespaces.
#[derive(Debug)]
pub struct NodeFeed {
    client: Client,
    pods: String,
    ready: [ReadyTask; 2],
}

impl NodeFeed {
    /// For the node of this name. Each of the two lists keeps `readiness` waiting until it has come.
    pub fn new(client: Client, node: &str, readiness: &Readiness) -> Self {
        let ready = [Kind::Namespace, Kind::Pod].map(|kind| {
            let mut task = readiness.task(format!("list of {}", kind.plural()));
            task.not_ready("the API server has not answered yet");
            task
        });
        Self { client, pods: format!("spec.nodeName={node}"), ready }
    }

    /// Tells `listener` all that happens. Never returns.
    pub async fn run(self, listener: &impl Listener) {
        let Self { client, pods, ready: [namespaces_ready, pods_ready] } = self;
        let sink = Told(listener);
        let of_namespaces = Reflector::new(&client, &sink, Kind::Namespace, namespaces_ready);
        let of_pods = Reflector::new(&client, &sink, Kind::Pod, pods_ready).of_fields(&pods);
        tokio::join!(of_namespaces.run(), of_pods.run());
    }
}

struct Told<'a, L>(&'a L);

impl<L: Listener> Sink for Told<'_, L> {
    fn page(&self, objects: Vec<Object>, _first: bool) -> Vec<Arc<Object>> {
        objects.into_iter().map(Arc::new).collect()
    }

    fn complete(&self, kind: Kind, all: Vec<Arc<Object>>) {
        self.0.all(kind, all);
    }

    fn changed(&self, changes: Vec<Change>) {
        self.0.changed(changes);
    }

    /// Every API server has namespaces and pods.
    fn holds(&self, _kind: Kind) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_testkit::api_server::ApiServer;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    struct Heard(mpsc::UnboundedSender<String>);

    impl Listener for Heard {
        fn all(&self, kind: Kind, objects: Vec<Arc<Object>>) {
            let names: Vec<_> = objects.iter().map(|object| object.metadata().name.to_string()).collect();
            let _ = self.0.send(format!("all {kind} {names:?}"));
        }

        fn changed(&self, changes: Vec<Change>) {
            for change in changes {
                let _ = self.0.send(match change {
                    Change::Upsert(object) => format!("now {}", object.key()),
                    Change::Remove(key) => format!("gone {key}"),
                });
            }
        }
    }

    #[tokio::test]
    async fn the_pods_of_other_nodes_are_none_of_its_business() {
        let server = ApiServer::start().await;
        let pod = |name: &str, node: &str| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
                "spec": {"nodeName": node, "containers": [{"name": "c"}]},
            })
        };
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        server.put(&pod("here", "n-1"));
        server.put(&pod("there", "n-2"));
        let (sender, mut heard) = mpsc::unbounded_channel();
        let readiness = Readiness::default();
        let client = Client::anonymous(&server.url()).expect("a URL");
        let feed = NodeFeed::new(client, "n-1", &readiness);
        assert!(!readiness.is_ready());
        let task = tokio::spawn(async move { feed.run(&Heard(sender)).await });
        let mut lists = Vec::new();
        let mut next = async || {
            let next = tokio::time::timeout(Duration::from_secs(60), heard.recv()).await;
            next.expect("in time").expect("it runs")
        };
        for _ in 0..2 {
            lists.push(next().await);
        }
        lists.sort();
        assert_eq!(lists, ["all Namespace [\"shop\"]", "all Pod [\"here\"]"]);
        assert!(readiness.is_ready());
        server.put(&pod("there-2", "n-2"));
        server.put(&pod("here-2", "n-1"));
        assert_eq!(next().await, "now Pod shop/here-2");
        server.delete("v1", "pods", "shop", "here");
        assert_eq!(next().await, "gone Pod shop/here");
        task.abort();
    }
}
