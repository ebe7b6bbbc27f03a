//! The waypoints of a stage or a cluster: what became of each Gateway, how its proxies are, and what may be reached around them.

use std::sync::Arc;

use anyhow::Context as _;
use leno_control::Followers;
use leno_local::client::NodePort;
use leno_local::{Listing, PodListing};
use leno_model::ports;
use leno_objects::WAYPOINT_BYPASS;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::proxies::{PAGE, Proxy};
use crate::cluster::waypoint::{Shown, waypoints};
use crate::output;
use crate::target::{ClusterNodes, Source as _, StageNodes};

/// How many are asked at a time.
const AT_ONCE: usize = 16;
/// Labels of a waypoint's pods: that they are Leno's, and whose they are.
const MANAGED: (&str, &str) = ("gateway.istio.io/managed", "leno.mesh-waypoint-controller");
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// All waypoints.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Waypoints {
    gateways: Vec<Waypoint>,
    /// What may be reached around its waypoint, because its own annotation says so or its Gateway's or Namespace's.
    bypassed: Vec<String>,
}

/// One Gateway.
#[derive(Debug, PartialEq, Serialize)]
struct Waypoint {
    #[serde(flatten)]
    gateway: Shown,
    pods: Vec<Pod>,
}

/// One pod of a waypoint, and its proxy.
#[derive(Debug, PartialEq, Serialize)]
struct Pod {
    name: String,
    node: String,
    ready: bool,
    proxy: Proxy,
}

/// Whether a pod is a waypoint's.
pub(super) fn is_waypoint(pod: &Value) -> bool {
    pod["metadata"]["labels"][MANAGED.0] == MANAGED.1
}

/// What runs now on a stage.
pub(super) async fn of_stage(
    source: &StageNodes,
    listing: &Listing,
    planes: &Result<Vec<Followers>, String>,
) -> Option<Waypoints> {
    let mut gateways = Vec::new();
    for waypoint in &listing.waypoints {
        let mut pods = Vec::new();
        let own = |pod: &&PodListing| pod.namespace == waypoint.namespace && pod.gateway == waypoint.name;
        for pod in listing.pods.iter().filter(own) {
            let mut proxy =
                Proxy::of(source.page(&format!("{}/{}", pod.namespace, pod.name), NodePort::Admin, PAGE).await);
            proxy.judge(&pod.node, &pod.name, planes);
            pods.push(Pod { name: pod.name.clone(), node: pod.node.clone(), ready: pod.ready, proxy });
        }
        let programmed = pods.iter().any(|pod| pod.ready);
        let gateway = Shown {
            namespace: waypoint.namespace.clone(),
            name: waypoint.name.clone(),
            class: waypoint.class.clone(),
            traffic: waypoint.traffic.clone(),
            programmed,
            message: if programmed { String::new() } else { format!("none of {} waypoint pods is ready", pods.len()) },
            bypass: waypoint.bypass,
        };
        gateways.push(Waypoint { gateway, pods });
    }
    (!gateways.is_empty() || !listing.bypassed.is_empty())
        .then(|| Waypoints { gateways, bypassed: listing.bypassed.clone() })
}

/// What runs now in a cluster. `pods` are those of it that run.
pub(super) async fn gather(
    nodes: &ClusterNodes,
    pods: &Value,
    planes: &Result<Vec<Followers>, String>,
) -> anyhow::Result<Waypoints> {
    let gateways = waypoints(nodes.client(), None).await?;
    let mut asking = JoinSet::new();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    for (index, pod) in pods["items"].as_array().into_iter().flatten().enumerate().filter(|(_, pod)| is_waypoint(pod)) {
        let metadata = &pod["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let (gateway, node) = (text(&metadata["labels"][GATEWAY_NAME]), text(&pod["spec"]["nodeName"]));
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True");
        let (client, places) = (nodes.client().clone(), places.clone());
        asking.spawn(async move {
            // It is never closed.
            let _place = places.acquire().await;
            let page = client.page(&namespace, &name, ports::ADMIN, PAGE).await;
            let proxy = Proxy::of(page.map(|page| page.body).map_err(anyhow::Error::from));
            (index, (namespace, gateway), Pod { name, node, ready, proxy })
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(index, ..)| *index);
    let mut gateways: Vec<Waypoint> =
        gateways.into_iter().map(|gateway| Waypoint { gateway, pods: Vec::new() }).collect();
    for (_, (namespace, name), mut pod) in answers {
        pod.proxy.judge(&pod.node, &pod.name, planes);
        let own = |it: &&mut Waypoint| it.gateway.namespace == namespace && it.gateway.name == name;
        if let Some(waypoint) = gateways.iter_mut().find(own) {
            waypoint.pods.push(pod);
        }
    }
    let client = nodes.client();
    let namespaces = client.get::<Value>("/api/v1/namespaces").await.context("listing namespaces")?;
    let services = client.get::<Value>("/api/v1/services").await.context("listing services")?;
    let mut bypassed: Vec<String> = gateways.iter().filter(|it| it.gateway.bypass).map(Waypoint::label).collect();
    for (kind, list) in [("Namespace", &namespaces), ("Service", &services), ("Pod", pods)] {
        let objects = list["items"].as_array().into_iter().flatten();
        let allowed =
            objects.map(|object| &object["metadata"]).filter(|it| it["annotations"][WAYPOINT_BYPASS] == "allowed");
        bypassed.extend(allowed.map(|it| {
            let name = it["name"].as_str().unwrap_or_default();
            match it["namespace"].as_str() {
                Some(namespace) => format!("{kind} {namespace}/{name}"),
                None => format!("{kind} {name}"),
            }
        }));
    }
    Ok(Waypoints { gateways, bypassed })
}

impl Waypoint {
    fn label(&self) -> String {
        format!("Gateway {}/{}", self.gateway.namespace, self.gateway.name)
    }
}

impl Waypoints {
    /// As a person reads it; empty where there are none.
    pub(super) fn text(&self) -> Option<String> {
        let mut parts = Vec::new();
        if !self.gateways.is_empty() {
            let rows: Vec<_> = self.gateways.iter().map(row).collect();
            let heading =
                ["WAYPOINT", "FOR", "PROGRAMMED", "READY", "IN SYNC", "VERSION", "CERTIFICATES END", "CONNECTIONS"];
            parts.push(output::table(&heading, &rows));
        }
        let mut said = Vec::new();
        for waypoint in &self.gateways {
            if !waypoint.gateway.programmed {
                said.push(format!("{}: {}", waypoint.label(), waypoint.gateway.message));
            }
            let problems = waypoint.pods.iter().filter_map(|pod| Some((&pod.name, pod.proxy.problem.as_ref()?)));
            said.extend(problems.map(|(pod, why)| format!("{}/{pod}: {why}", waypoint.gateway.namespace)));
        }
        if !self.bypassed.is_empty() {
            said.push(format!("reached around waypoints, because {WAYPOINT_BYPASS}: {}", self.bypassed.join(", ")));
        }
        if !said.is_empty() {
            parts.push(said.join("\n"));
        }
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }
}

fn row(waypoint: &Waypoint) -> Vec<String> {
    let (gateway, pods) = (&waypoint.gateway, &waypoint.pods);
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let in_sync: Option<Vec<bool>> = pods.iter().map(|pod| pod.proxy.in_sync).collect();
    let in_sync = in_sync.filter(|all| !all.is_empty()).map(|all| word(all.iter().all(|it| *it)));
    let mut versions: Vec<_> = pods.iter().filter_map(|pod| pod.proxy.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    let first_end = pods.iter().filter_map(|pod| pod.proxy.certificates.as_ref()).map(ToString::to_string).min();
    let connections = pods.iter().filter_map(|pod| pod.proxy.connections).reduce(|sum, more| sum + more);
    vec![
        format!("{}/{}", gateway.namespace, gateway.name),
        gateway.traffic.clone(),
        word(gateway.programmed),
        format!("{}/{}", pods.iter().filter(|pod| pod.ready).count(), pods.len()),
        or_none(in_sync),
        or_none((!versions.is_empty()).then(|| versions.join(", "))),
        or_none(first_end),
        or_none(connections.map(|count| count.to_string())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waypoint_is_told_with_its_pods_and_what_goes_around_it() {
        let gateway = Shown {
            namespace: "shop".to_owned(),
            name: "gate".to_owned(),
            class: "leno-waypoint".to_owned(),
            traffic: "service".to_owned(),
            programmed: false,
            message: "none of 1 waypoint pods is ready".to_owned(),
            bypass: true,
        };
        let page = r#"{"version": "0.1.0", "controlPlane": {"connected": true}, "connections": 3, "certificates": {"held": 1}}"#;
        let pod = |ready| Pod {
            name: "gate-a".to_owned(),
            node: "n1".to_owned(),
            ready,
            proxy: Proxy { in_sync: Some(ready), ..Proxy::of(Ok(page.to_owned())) },
        };
        let pods = vec![pod(true), pod(false)];
        let all =
            Waypoints { gateways: vec![Waypoint { gateway, pods }], bypassed: vec!["Gateway shop/gate".to_owned()] };
        let text = all.text().expect("something to say");
        let row = text.lines().nth(1).expect("a row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["shop/gate", "service", "no", "1/2", "no", "0.1.0", "-", "6"], "{text}");
        assert!(text.contains("\nGateway shop/gate: none of 1 waypoint pods is ready\n"), "{text}");
        assert!(text.ends_with("leno.mesh/waypoint-bypass: Gateway shop/gate"), "{text}");
        assert_eq!(Waypoints::default().text(), None);
    }
}
