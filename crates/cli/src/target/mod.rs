//! Which is meant: a stage of this machine or a cluster.
//!
//! The one rule: `--kubeconfig`, `--context` or the namespace of an installation mean a cluster. `--name` or `LENO_STAGE` mean a
//! stage. Without any of these it is the stage `default` if this user has one, else the cluster that a kubeconfig names.

mod cluster_nodes;
mod source;

use std::path::PathBuf;

use leno_install::NAMESPACE;
use leno_install::cluster::{ClusterError, installer};
use leno_kubernetes::{Client, Cluster};
use leno_local::names::{DEFAULT_STAGE, StageName};
use leno_local::stages;
use serde_json::{Value, json};

pub(crate) use cluster_nodes::{ClusterNodes, Part, best};
pub(crate) use source::{Source, StageNodes, chosen, chosen_proxies};

use crate::args::{InstalledArgs, TargetArgs};

/// What a command is about.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A stage of this machine, which may not run.
    Stage(StageName),
    /// An installation in a cluster.
    Cluster(ClusterNodes),
}

impl Target {
    /// The one that is meant.
    ///
    /// # Errors
    /// If a cluster is meant, and it can't be reached or has no installation.
    pub(crate) async fn of(args: &TargetArgs) -> anyhow::Result<Self> {
        Self::find(args, None).await
    }

    /// As [`Self::of`], of an installation in the namespace that is named.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) async fn installed(args: &InstalledArgs) -> anyhow::Result<Self> {
        Self::find(&args.target, args.namespace.as_deref()).await
    }

    async fn find(args: &TargetArgs, namespace: Option<&str>) -> anyhow::Result<Self> {
        let default = StageName::new(DEFAULT_STAGE)?;
        let known = Known {
            named: args.name.clone(),
            cluster_named: args.kubeconfig.is_some() || args.context.is_some() || namespace.is_some(),
            default_exists: || {
                stages::names().is_ok_and(|names| names.iter().any(|name| name.as_str() == DEFAULT_STAGE))
            },
            cluster_exists: || is_configured(&|name| std::env::var_os(name).map(PathBuf::from)),
        };
        match known.stage(default) {
            Some(stage) => Ok(Self::Stage(stage)),
            None => Ok(Self::Cluster(cluster(args, namespace).await?)),
        }
    }

    /// Its name, in words.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stage(name) => format!("stage {}", name.as_str()),
            Self::Cluster(nodes) => format!("cluster {}, namespace {}", nodes.client().server(), nodes.namespace()),
        }
    }

    /// Its name, for programs.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Stage(name) => json!({"stage": name.as_str()}),
            Self::Cluster(nodes) => json!({"cluster": nodes.client().server(), "namespace": nodes.namespace()}),
        }
    }

    /// Says on standard error which one an answer is about.
    pub(crate) fn announce(&self) {
        eprintln!("{}", self.name());
    }
}

async fn cluster(args: &TargetArgs, namespace: Option<&str>) -> anyhow::Result<ClusterNodes> {
    let cluster = Cluster { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let client = Client::new(&cluster).await?;
    let namespace = match namespace {
        Some(namespace) => namespace.to_owned(),
        None => match installer(&client).await {
            Ok(Some((namespace, _))) => namespace,
            Ok(None) => return Err(ClusterError::NotInstalled { namespace: NAMESPACE.to_owned() }.into()),
            // Whoever may look into the installation's namespace need not be let see the whole cluster.
            Err(ClusterError::Forbidden { .. }) => NAMESPACE.to_owned(),
            Err(error) => return Err(error.into()),
        },
    };
    Ok(ClusterNodes::new(client, namespace))
}

/// What the rule is asked about.
struct Known<S, C> {
    /// The stage that is named.
    named: Option<StageName>,
    cluster_named: bool,
    default_exists: S,
    cluster_exists: C,
}

impl<S: Fn() -> bool, C: Fn() -> bool> Known<S, C> {
    /// The stage that is meant; `None` if a cluster is.
    fn stage(self, default: StageName) -> Option<StageName> {
        match self.named {
            _ if self.cluster_named => None,
            Some(name) => Some(name),
            None if (self.default_exists)() || !(self.cluster_exists)() => Some(default),
            None => None,
        }
    }
}

/// Whether there is a kubeconfig, or this runs in a pod.
fn is_configured(variable: &dyn Fn(&str) -> Option<PathBuf>) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    set("KUBECONFIG").is_some()
        || set("KUBERNETES_SERVICE_HOST").is_some()
        || set("HOME").is_some_and(|home| home.join(".kube/config").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: Option<&str>, cluster_named: bool, default_exists: bool, cluster_exists: bool) -> Option<String> {
        let named = name.map(|name| StageName::new(name).unwrap());
        let known =
            Known { named, cluster_named, default_exists: || default_exists, cluster_exists: || cluster_exists };
        known.stage(StageName::new(DEFAULT_STAGE).unwrap()).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn one_rule_says_which_is_meant() {
        assert_eq!(stage(None, false, true, true).as_deref(), Some("default"), "a stage runs here");
        assert_eq!(stage(None, false, false, true), None, "none runs, and there is a kubeconfig");
        assert_eq!(stage(None, false, false, false).as_deref(), Some("default"), "its error says that none runs");
        assert_eq!(stage(Some("x"), false, false, true).as_deref(), Some("x"));
        assert_eq!(stage(Some("x"), true, true, true), None, "a flag counts more than the environment");
        assert_eq!(stage(None, true, true, true), None);
    }

    #[test]
    fn a_kubeconfig_is_found_where_kubectl_looks() {
        let home = tempfile::tempdir().unwrap();
        let with = |set: &'static str, value: &str| {
            let value = PathBuf::from(value);
            is_configured(&move |name| (name == set).then(|| value.clone()))
        };
        assert!(!with("HOME", home.path().to_str().unwrap()));
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), "").unwrap();
        assert!(with("HOME", home.path().to_str().unwrap()));
        assert!(with("KUBECONFIG", "/x") && !with("KUBECONFIG", "") && with("KUBERNETES_SERVICE_HOST", "10.0.0.1"));
    }
}
