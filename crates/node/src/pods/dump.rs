//! The pods in the configuration dump.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_proxy::Carried;
use leno_proxy::admin::Named;
use serde::ser::SerializeMap;
use serde_json::{Value, json};

use crate::pod::Pod;

/// The pods of the node at one moment.
pub(crate) struct PodStates {
    /// The pods that are served, with their UIDs.
    pub(crate) running: Vec<(String, Arc<Pod>)>,
    /// The pods that can't be served, and why.
    pub(crate) pending: BTreeMap<String, String>,
}

impl Carried for PodStates {
    fn members<M: SerializeMap>(&self, dump: &mut M) -> Result<(), M::Error> {
        let states = || self.running.iter().map(pod).chain(self.pending.iter().map(pending));
        dump.serialize_entry("workloadState", &Named(states))
    }
}

fn pod((uid, pod): &(String, Arc<Pod>)) -> (String, Value) {
    let (inbound, outbound) = pod.connections().dump();
    let inbound: Vec<Value> = inbound
        .into_iter()
        .map(|c| {
            let protocol = if c.source.is_some() { "HBONE" } else { "TCP" };
            let source = c.source.map(|id| id.to_string());
            json!({"src": c.source_ip, "srcIdentity": source, "actualDst": c.destination, "protocol": protocol})
        })
        .collect();
    let outbound: Vec<Value> = outbound
        .into_iter()
        .map(|c| {
            let (source, actual, tunnel) = c.traffic.way();
            let protocol = if tunnel { "HBONE" } else { "TCP" };
            json!({"src": source, "originalDst": c.original, "actualDst": actual, "protocol": protocol})
        })
        .collect();
    let value = json!({
        "state": "Up",
        "connections": {"inbound": inbound, "outbound": outbound},
        "info": {
            "name": pod.info().name,
            "namespace": pod.info().namespace,
            "serviceAccount": pod.info().service_account,
        },
    });
    (uid.clone(), value)
}

fn pending((uid, reason): (&String, &String)) -> (String, Value) {
    (uid.clone(), json!({"state": "Pending", "error": reason}))
}
