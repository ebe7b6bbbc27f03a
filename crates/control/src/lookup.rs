//! Finds what a person means by `NAMESPACE/NAME`.

use std::sync::Arc;

use leno_model::{Mesh, Workload};
use leno_policy::find::{LookupError, Target, find_target, find_workloads};

use leno_objects::did_you_mean;

use crate::hint::hint;

/// Nothing in the mesh has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source}{}", hint(.meant.as_deref()))]
pub struct Error {
    /// Why nothing was found.
    pub source: LookupError,
    /// The name that the person probably meant.
    pub meant: Option<String>,
}

impl Error {
    /// Whether the same name may be found later, because its object may be on its way.
    pub fn is_retryable(&self) -> bool {
        matches!(self.source, LookupError::Unknown { .. } | LookupError::Empty(_))
    }
}

/// The workload that `NAMESPACE/NAME` means as a source: a pod, or one of a Service's or of what makes pods, such as a
/// Deployment; of several the first by name.
///
/// # Errors
/// If nothing has that name.
pub fn source(mesh: &Mesh, name: &str) -> Result<Arc<Workload>, Error> {
    match find_workloads(mesh, name) {
        Ok(found) => {
            found.first().map(|workload| (*workload).clone()).ok_or_else(|| LookupError::Empty(name.to_owned()))
        }
        Err(error) => Err(error),
    }
    .map_err(|error| explain(mesh, name, error))
}

/// What `NAME:PORT` or `IP:PORT`, with `/udp` after it or without, means to `source`.
///
/// # Errors
/// If there is no such thing, or no port.
pub fn destination(mesh: &Mesh, source: &Workload, text: &str) -> Result<Target, Error> {
    find_target(mesh, source, text).map_err(|error| {
        let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
        explain(mesh, name, error)
    })
}

fn explain(mesh: &Mesh, name: &str, source: LookupError) -> Error {
    let LookupError::Unknown { .. } = source else { return Error { source, meant: None } };
    let workloads = mesh.workloads().flat_map(|w| {
        let mut names = vec![format!("{}/{}", w.namespace, w.name)];
        if !w.workload_name.is_empty() {
            names.push(format!("{}/{}", w.namespace, w.workload_name));
        }
        names
    });
    let services = mesh.services().map(|s| format!("{}/{}", s.id.namespace, s.name));
    let mut known: Vec<String> = workloads.chain(services).collect();
    known.sort();
    known.dedup();
    let short = |full: &str| full.split_once('/').map(|(_, short)| short.to_owned());
    // The right name in the wrong namespace is as common as a typing mistake.
    let elsewhere = || known.iter().find(|full| short(full).is_some() && short(full) == short(name)).cloned();
    let meant = elsewhere().or_else(|| did_you_mean(name, known.iter().map(String::as_str)).map(str::to_owned));
    Error { source, meant }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::upserts;
    use crate::translate::{Options, Translator};

    fn mesh() -> Mesh {
        let mut translator = Translator::new(Options::default());
        translator.apply(upserts(
            "
apiVersion: v1
kind: Pod
metadata:
  {name: web-2, namespace: shop, labels: {app: web}, ownerReferences: [{kind: Deployment, name: web-deployment}]}
spec: {containers: [{name: c}]}
status: {podIP: 10.0.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, ownerReferences: [{kind: Deployment, name: web-deployment}]}
spec: {containers: [{name: c}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec: {clusterIP: 10.1.0.1, selector: {app: web}, ports: [{port: 80}]}
",
        ));
        translator.mesh().clone()
    }

    #[test]
    fn sources() {
        let mesh = mesh();
        let found = |name: &str| source(&mesh, name).map(|workload| workload.name.to_string());
        assert_eq!(found("shop/web-2").as_deref(), Ok("web-2"));
        assert_eq!(found("shop/web-deployment").as_deref(), Ok("web-1"));
        assert_eq!(found("shop/front").as_deref(), Ok("web-2"));
        let error = found("shop/web-3").expect_err("unknown").to_string();
        assert!(error.contains("did you mean shop/web-1?"), "{error}");
        let error = found("default/front").expect_err("unknown").to_string();
        assert!(error.contains("did you mean shop/front?"), "{error}");
        assert!(found("front").is_err());
    }

    #[test]
    fn destinations() {
        let mesh = mesh();
        let from = source(&mesh, "shop/web-1").expect("there");
        let found = |name: &str| destination(&mesh, &from, name).map(|target| target.destinations);
        let at = |address: &str| {
            leno_policy::find::Destination::from(address.parse::<std::net::SocketAddr>().expect("an address"))
        };
        assert_eq!(found("shop/front:80"), Ok(vec![at("10.1.0.1:80")]));
        assert_eq!(found("shop/web-2:8080"), Ok(vec![at("10.0.0.2:8080")]));
        let error = found("shop/frnt:80").expect_err("unknown");
        assert_eq!(error.meant.as_deref(), Some("shop/front"));
        assert!(error.is_retryable());
        assert_eq!(found("shop/front"), found("shop/front:80"), "it has but one port");
        assert_eq!(found("shop/web-deployment:1").map(|found| found.len()), Ok(2));
        assert!(!found("shop/web-1").expect_err("no port").is_retryable());
    }
}
