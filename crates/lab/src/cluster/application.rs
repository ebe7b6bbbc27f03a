//! A scenario's application in a cluster. It has namespaces of its own, which carry the lab's mark, so that they are found
//! again when a lab was killed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use leno_kubernetes::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::nodes::Nodes;
use super::pods::{Pods, Trouble, is_ready, trouble};
use super::space::{LAB, MANAGED_BY, NAMESPACE};
use crate::Error;
use crate::scenario::{Application, Place, Step, ways};

/// For all its pods to run, and for its waypoints to be ready.
const RUNS: Duration = Duration::from_secs(240);
/// For its namespaces to be removed.
const GONE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(500);

/// Makes everything, waits until it runs, and returns the addresses of its services by `NAME.NAMESPACE`.
///
/// # Errors
/// What does not run, and why.
pub(super) async fn start(
    application: Application,
    pods: &Pods<'_>,
    nodes: &Nodes,
    class: &str,
    steps: &[&Step],
) -> Result<BTreeMap<String, IpAddr>, Error> {
    let place = Place {
        program: "",
        image: Some(pods.image),
        nodes: [&nodes.near.name, &nodes.far.name],
        in_mesh: pods.in_mesh,
        class,
        ways: ways(steps),
        hops: false,
    };
    let objects = application.objects(&place);
    for object in &objects {
        let object = for_a_cluster(object.clone(), pods.deadline);
        let what = || format!("cannot make {} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        let path = collection(&object).ok_or_else(|| Error::Unfit(format!("{}: no path is known", what())))?;
        pods.client.create::<Value>(&path, &object).await.map_err(Error::cluster(what()))?;
    }
    let begun = Instant::now();
    let mut services = BTreeMap::new();
    for object in &objects {
        match text(&object["kind"]) {
            "Pod" => {
                let wanted = |pod: &Value| is_ready(pod) && pods.is_as_wanted(pod);
                wait(pods.client, object, begun, wanted).await?;
            }
            "Gateway" => drop(wait(pods.client, object, begun, is_programmed).await?),
            "Service" => {
                let service = wait(pods.client, object, begun, |_| true).await?;
                let address = text(&service["spec"]["clusterIP"]).parse();
                let metadata = &object["metadata"];
                let name = format!("{}.{}", text(&metadata["name"]), text(&metadata["namespace"]));
                let address = address.map_err(|_| Error::Unfit(format!("service {name} has no address")))?;
                services.insert(name, address);
            }
            _ => {}
        }
    }
    Ok(services)
}

/// Removes the namespaces of all applications, and waits until they are gone. Returns whether there were any.
///
/// # Errors
/// If one can't be removed.
pub(super) async fn remove(client: &Client) -> Result<bool, Error> {
    let what = "cannot remove the namespaces of the lab's applications";
    let path = format!("/api/v1/namespaces?labelSelector={}%3D{LAB}", MANAGED_BY.replace('/', "%2F"));
    let begun = Instant::now();
    let mut any = false;
    loop {
        let list: Value = client.get(&path).await.map_err(Error::cluster(what))?;
        let names = list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]);
        let left: Vec<&Value> = names.filter(|metadata| text(&metadata["name"]) != NAMESPACE).collect();
        let Some(first) = left.first() else { return Ok(any) };
        if begun.elapsed() > GONE {
            let name = text(&first["name"]);
            return Err(Error::Unfit(format!("{what}: {name} is still there after {} s", GONE.as_secs())));
        }
        for metadata in left.iter().filter(|metadata| metadata["deletionTimestamp"].is_null()) {
            match client.delete(&format!("/api/v1/namespaces/{}", text(&metadata["name"]))).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(Error::cluster(what)(error)),
                _ => {}
            }
        }
        any = true;
        tokio::time::sleep(LOOK).await;
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What a cluster needs, and what it chooses by itself.
fn for_a_cluster(mut object: Value, deadline: u64) -> Value {
    match text(&object["kind"]) {
        "Service" => {
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("clusterIP");
            }
        }
        "Pod" => {
            let spec = &mut object["spec"];
            // A lab that was killed leaves pods that end by themselves.
            spec["activeDeadlineSeconds"] = json!(deadline);
            spec["automountServiceAccountToken"] = json!(false);
            spec["securityContext"] =
                json!({ "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } });
        }
        _ => {}
    }
    object
}

fn collection(object: &Value) -> Option<String> {
    let (group, plural) = match text(&object["kind"]) {
        "Namespace" => return Some("/api/v1/namespaces".to_owned()),
        "ServiceAccount" => ("/api/v1", "serviceaccounts"),
        "Service" => ("/api/v1", "services"),
        "Pod" => ("/api/v1", "pods"),
        "Gateway" => ("/apis/gateway.networking.k8s.io/v1", "gateways"),
        "AuthorizationPolicy" => ("/apis/security.istio.io/v1", "authorizationpolicies"),
        _ => return None,
    };
    Some(format!("{group}/namespaces/{}/{plural}", text(&object["metadata"]["namespace"])))
}

fn is_programmed(gateway: &Value) -> bool {
    let mut conditions = gateway["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Programmed" && condition["status"] == "True")
}

/// Waits until an object is as wanted, and returns it.
async fn wait(
    client: &Client,
    object: &Value,
    begun: Instant,
    wanted: impl Fn(&Value) -> bool,
) -> Result<Value, Error> {
    let metadata = &object["metadata"];
    let name = format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
    let path = format!("{}/{}", collection(object).unwrap_or_default(), text(&metadata["name"]));
    loop {
        let now: Value = client.get(&path).await.map_err(Error::cluster(format!("cannot ask for {name}")))?;
        if wanted(&now) {
            return Ok(now);
        }
        let why = match trouble(&now) {
            Some(Trouble::Lasting(why)) => Some(why),
            _ if begun.elapsed() > RUNS => {
                Some(format!("it is not ready after {} s: {}", RUNS.as_secs(), now["status"]["conditions"]))
            }
            _ => None,
        };
        if let Some(why) = why {
            return Err(Error::Unfit(format!("{name} of the application does not run: {why}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Size;

    /// Every object has a place, and nothing is asked for that a cluster would refuse.
    #[test]
    fn objects_are_a_clusters() {
        let place = Place {
            program: "",
            image: Some("i:1"),
            nodes: ["a", "b"],
            in_mesh: true,
            class: "istio-waypoint",
            ways: [true, true],
            hops: false,
        };
        for application in [Application::Emojivoto { instances: 2 }, Application::Bookinfo { size: Size::Full }] {
            for object in application.objects(&place) {
                let object = for_a_cluster(object, 60);
                let path = collection(&object).unwrap_or_else(|| panic!("{object}"));
                match text(&object["kind"]) {
                    "Namespace" => assert_eq!(object["metadata"]["labels"][MANAGED_BY], LAB),
                    "Service" => assert!(object["spec"]["clusterIP"].is_null() && path.ends_with("/services")),
                    "Pod" => {
                        let container = &object["spec"]["containers"][0];
                        assert_eq!((text(&container["image"]), text(&container["args"][0])), ("i:1", "sample"));
                        assert!(container["command"].is_null() && object["spec"]["activeDeadlineSeconds"] == 60);
                    }
                    "Gateway" => assert_eq!(object["spec"]["gatewayClassName"], "istio-waypoint"),
                    _ => {}
                }
            }
        }
    }
}
