//! Which mesh is installed in a cluster.

use leno_kubernetes::Client;
use serde_json::Value;

use crate::Error;

/// A mesh that captures pods by the label `istio.io/dataplane-mode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mesh {
    /// Its name, and where it is.
    pub(super) name: String,
    pub(super) is_leno: bool,
    /// The image of its node proxies.
    pub(super) image: String,
    /// That image's SHA-256, hex; empty if no node tells it.
    pub(super) digest: String,
}

/// Node proxies, by the labels of their charts: of Leno, and of Istio.
const LENO: &str = "app.kubernetes.io/name%3Dleno-node";
const ZTUNNEL: &str = "app%3Dztunnel";

/// The mesh, if there is one.
///
/// # Errors
/// If it can't be told, or there are two, or its node proxies do not run.
pub(super) async fn find(client: &Client) -> Result<Option<Mesh>, Error> {
    let list = async |what: &str, selector: &str| -> Result<Vec<Value>, Error> {
        let path = format!("/{what}?labelSelector={selector}");
        let found: Value =
            client.get(&path).await.map_err(Error::cluster("cannot find out which mesh is installed"))?;
        Ok(found["items"].as_array().cloned().unwrap_or_default())
    };
    let lenos = list("apis/apps/v1/daemonsets", LENO).await?;
    let is_leno = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "leno";
    let mut others = list("apis/apps/v1/daemonsets", ZTUNNEL).await?;
    others.retain(|object| !is_leno(object));
    let (set, is_leno) = match (&lenos[..], &others[..]) {
        ([], []) => return Ok(None),
        ([one], []) => (one, true),
        ([], [one]) => (one, false),
        _ => {
            let text = "more than one mesh has node proxies in this cluster: nobody could tell which one carries the lab's \
                        traffic. Remove one of them";
            return Err(Error::Unfit(text.to_owned()));
        }
    };
    let mut mesh = described(set, is_leno)?;
    let selector = if is_leno { LENO } else { ZTUNNEL };
    let namespace = set["metadata"]["namespace"].as_str().unwrap_or_default();
    let pods = list(&format!("api/v1/namespaces/{namespace}/pods"), selector).await?;
    mesh.digest = pods.iter().find_map(digest).unwrap_or_default();
    Ok(Some(mesh))
}

/// The mesh of a DaemonSet of node proxies.
fn described(set: &Value, is_leno: bool) -> Result<Mesh, Error> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, namespace) = (text(&set["metadata"]["name"]), text(&set["metadata"]["namespace"]));
    let count = |field: &str| set["status"][field].as_u64().unwrap_or(0);
    let (wanted, ready) = (count("desiredNumberScheduled"), count("numberReady"));
    if ready < wanted || wanted == 0 {
        return Err(Error::Unfit(format!(
            "{ready} of {wanted} node proxies of DaemonSet {namespace}/{name} are ready: the mesh is not fit to be measured; \
             `kubectl -n {namespace} get pods` and `leno check` show why"
        )));
    }
    let title = if is_leno { "Leno" } else { "Istio in ambient mode" };
    Ok(Mesh {
        name: format!("{title} ({namespace}/{name})"),
        is_leno,
        image: text(&set["spec"]["template"]["spec"]["containers"][0]["image"]),
        digest: String::new(),
    })
}

/// The SHA-256 of a pod's image, as the node says: `...@sha256:HEX` or `sha256:HEX`.
fn digest(pod: &Value) -> Option<String> {
    let id = pod["status"]["containerStatuses"][0]["imageID"].as_str()?;
    id.rsplit_once("sha256:").map(|(_, digest)| digest.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mesh_that_is_not_ready_is_not_measured() {
        let mut set = json!({
            "metadata": {"name": "leno-node", "namespace": "leno-system"},
            "spec": {"template": {"spec": {"containers": [{"image": "localhost/leno:1"}]}}},
            "status": {"desiredNumberScheduled": 3, "numberReady": 2},
        });
        let error = described(&set, true).unwrap_err().to_string();
        assert!(error.contains("2 of 3 node proxies of DaemonSet leno-system/leno-node"), "{error}");
        set["status"]["numberReady"] = 3.into();
        let mesh = described(&set, true).unwrap();
        assert_eq!((mesh.name.as_str(), mesh.image.as_str()), ("Leno (leno-system/leno-node)", "localhost/leno:1"));
    }

    #[test]
    fn digests() {
        let pod = |id: &str| json!({"status": {"containerStatuses": [{"imageID": id}]}});
        assert_eq!(digest(&pod("example.com/a@sha256:00ff")).as_deref(), Some("00ff"));
        assert_eq!(digest(&pod("sha256:00ff")).as_deref(), Some("00ff"));
        assert_eq!(digest(&json!({})), None);
    }
}
