//! `leno status` of a stage.

use std::time::Duration;

use anyhow::Context as _;
use leno_local::client::{CONTROL_PLANE, Client, NodePort};
use leno_local::names::StageName;
use leno_local::{Listing, NodeListing};

use super::proxies::{PAGE, Proxy};
use super::{Node, Status, waypoints};
use crate::target::{Source as _, StageNodes, Target};

/// What runs now; if it is to be waited, once all proxies do.
pub(super) async fn gather(name: &StageName, wait: Option<Duration>) -> anyhow::Result<Status> {
    let listing = match wait {
        None => Client::connect(name).await?.ps().await?,
        Some(most) => tokio::time::timeout(most, settled(name))
            .await
            .with_context(|| format!("not all proxies are ready after {} s; `leno ps` shows why", most.as_secs()))??,
    };
    let source = StageNodes(name.clone());
    let followers = source.page(CONTROL_PLANE, NodePort::Metrics, leno_control::endpoints::PROXIES).await;
    let planes = followers
        .and_then(|page| Ok(vec![serde_json::from_str(&page)?]))
        .map_err(|error| format!("the control plane can't be asked ({error:#})"));
    let mut nodes = std::collections::BTreeMap::new();
    for node in &listing.nodes {
        let mut proxy = Proxy::of(source.page(&node.name, NodePort::Admin, PAGE).await);
        // As the supervisor calls it.
        proxy.judge(&node.name, &format!("ztunnel-{}", node.name), &planes);
        nodes.insert(node.name.clone(), of_node(node, &listing, proxy));
    }
    let waypoints = waypoints::of_stage(&source, &listing, &planes).await;
    let (of, troubles) = (Target::Stage(name.clone()).json(), listing.troubles);
    Ok(Status { of, components: None, nodes, troubles, waypoints })
}

async fn settled(name: &StageName) -> anyhow::Result<Listing> {
    let mut client = Client::connect(name).await?;
    client.watch().await?;
    while let Some(now) = client.next().await? {
        if now.nodes.iter().all(|node| node.ready) {
            return Ok(now);
        }
    }
    anyhow::bail!("the stage has ended")
}

fn of_node(node: &NodeListing, listing: &Listing, proxy: Proxy) -> Node {
    let pods: Vec<_> = listing.pods.iter().filter(|pod| pod.node == node.name && !pod.waypoint).collect();
    let count = |wanted: fn(bool, bool) -> bool| pods.iter().filter(|pod| wanted(pod.in_mesh, pod.wants_mesh)).count();
    Node {
        in_mesh: count(|is, _| is),
        pending: count(|is, wants| wants && !is),
        outside: count(|is, wants| !wants && !is),
        draining: proxy.draining,
        proxy,
    }
}
