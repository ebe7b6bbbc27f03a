//! `leno enrol` and `leno unenrol`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::StatusCode;
use leno_install::cluster::installer;
use leno_kubernetes::{Client, Patch};
use leno_objects::{DATAPLANE_MODE as MODE, REDIRECTION_ANNOTATION as REDIRECTION, REDIRECTION_ENABLED};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client;
use crate::args::EnrolArgs;
use crate::output;

/// How often pods are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Sets the label or removes it.
pub(super) async fn run(args: EnrolArgs, into: bool) -> anyhow::Result<()> {
    let client = client(&args.cluster).await?;
    let namespaces = distinct(&args.namespaces);
    // All or nothing: a name that is mistyped changes no other.
    let missing = missing(&client, &namespaces).await?;
    if !missing.is_empty() {
        bail!("there is no namespace {}; `kubectl get namespaces` lists those that there are", missing.join(", "));
    }
    if into && installer(&client).await?.is_none() {
        eprintln!("Leno is not installed in this cluster: the label has no effect until `leno install`");
    }
    for namespace in &namespaces {
        let mode = if into { json!("ambient") } else { Value::Null };
        let patch = json!({"metadata": {"labels": {MODE: mode}}});
        let patched = client.patch(&path(namespace), Patch::Merge, &patch).await;
        patched.with_context(|| format!("labelling the namespace {namespace}"))?;
        let label = if into { format!("{MODE}=ambient") } else { format!("{MODE}-") };
        output::line(&format!("{namespace}: kubectl label namespace {namespace} {label}"))?;
    }
    if args.wait.wait {
        let deadline = Instant::now() + args.wait.timeout;
        for namespace in &namespaces {
            wait(&client, namespace, into, deadline).await?;
        }
    }
    Ok(())
}

/// Each name once, in the order in which they were given.
fn distinct(names: &[String]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    names.iter().map(String::as_str).filter(|name| seen.insert(*name)).collect()
}

/// The namespaces that the cluster does not have.
async fn missing<'n>(client: &Client, namespaces: &[&'n str]) -> anyhow::Result<Vec<&'n str>> {
    let mut missing = Vec::new();
    for namespace in namespaces {
        let found = client.find::<Value>(&path(namespace)).await;
        if found.with_context(|| format!("looking for the namespace {namespace}"))?.is_none() {
            missing.push(*namespace);
        }
    }
    Ok(missing)
}

fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}")
}

/// Returns when every pod is where the label says. An API server that is away for a moment is waited for, too.
async fn wait(client: &Client, namespace: &str, into: bool, deadline: Instant) -> anyhow::Result<()> {
    loop {
        let list = match client.get::<Value>(&format!("{}/pods", path(namespace))).await {
            // A right that is missing stays so until somebody grants it.
            Err(error)
                if error.is_retryable()
                    && error.status() != Some(StatusCode::FORBIDDEN)
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(INTERVAL).await;
                continue;
            }
            answer => answer.context("listing pods")?,
        };
        let (arrived, missing) = sides(&list, into);
        let place = if into { "in the mesh" } else { "out of the mesh" };
        if missing.is_empty() {
            return output::line(&format!("{namespace}: {arrived} pods {place}"));
        }
        if Instant::now() >= deadline {
            bail!(
                "{} pods of {namespace} are not {place}: {}; `kubectl describe pod` shows why, in its events",
                missing.len(),
                missing.join(", ")
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// How many pods are where the label of their namespace says, and the names of the others. Pods that can't be in a mesh, or say
/// for themselves, don't count.
fn sides(list: &Value, into: bool) -> (usize, Vec<String>) {
    let pods = list["items"].as_array().into_iter().flatten();
    let meant = pods.filter(|pod| {
        let ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        let own = !pod["metadata"]["labels"][MODE].is_null() || pod["spec"]["hostNetwork"] == true;
        !ended && !own && pod["metadata"]["deletionTimestamp"].is_null()
    });
    let (there, missing): (Vec<_>, Vec<_>) =
        meant.partition(|pod| (pod["metadata"]["annotations"][REDIRECTION] == REDIRECTION_ENABLED) == into);
    let names = missing.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
    (there.len(), names)
}

#[cfg(test)]
mod tests {
    use leno_testkit::api_server::ApiServer;

    use super::*;

    #[tokio::test]
    async fn each_namespace_that_is_missing_is_named_once() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        let names = ["shop", "sop", "shop", "sop", "bank"].map(str::to_owned);
        let namespaces = distinct(&names);
        assert_eq!(namespaces, ["shop", "sop", "bank"]);
        assert_eq!(missing(&client, &namespaces).await.unwrap(), ["sop", "bank"]);
    }

    #[tokio::test]
    async fn an_api_server_that_is_away_for_a_moment_ends_no_wait() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).unwrap();
        server.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "annotations": {REDIRECTION: "enabled"}},
        }));
        let deadline = Instant::now() + Duration::from_secs(20);
        server.refuse_next([(StatusCode::SERVICE_UNAVAILABLE, None), (StatusCode::TOO_MANY_REQUESTS, None)]);
        wait(&client, "shop", true, deadline).await.unwrap();
        server.refuse_next([(StatusCode::FORBIDDEN, None)]);
        let error = wait(&client, "shop", true, deadline).await.unwrap_err();
        assert!(format!("{error:#}").contains("403"), "{error:#}");
    }

    #[test]
    fn pods_that_can_be_in_a_mesh_are_counted() {
        let pod = |name: &str, more: Value| {
            let mut pod = json!({"metadata": {"name": name}});
            for (pointer, value) in more.as_object().unwrap() {
                pod[pointer.as_str()] = value.clone();
            }
            pod
        };
        let inside = json!({"metadata": {"name": "in", "annotations": {REDIRECTION: "enabled"}}});
        let pending = json!({"metadata": {"name": "pending", "annotations": {REDIRECTION: "pending"}}});
        let list = json!({"items": [
            inside,
            pending,
            pod("out", json!({})),
            pod("ended", json!({"status": {"phase": "Succeeded"}})),
            pod("host", json!({"spec": {"hostNetwork": true}})),
            pod("own", json!({"metadata": {"name": "own", "labels": {MODE: "none"}}})),
        ]});
        assert_eq!(sides(&list, true), (1, vec!["pending".to_owned(), "out".to_owned()]));
        assert_eq!(sides(&list, false), (2, vec!["in".to_owned()]));
    }
}
