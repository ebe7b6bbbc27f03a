//! How a stage is set up.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::names::StageName;
use crate::stage::publish::Published;

/// How to set a stage up.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// Name; several stages can run side by side.
    pub name: StageName,
    /// Number of nodes, called `node-1`, `node-2`, ...
    pub nodes: usize,
    /// Files and directories with manifests; `-` is standard input. May be empty.
    pub manifests: Vec<PathBuf>,
    /// Whether edits of the files take effect.
    pub watch: bool,
    /// Programs to start as the proxy of single nodes.
    pub proxies: BTreeMap<String, PathBuf>,
    /// Program to start as the proxy of all other nodes; this one if `None`.
    pub default_proxy: Option<PathBuf>,
    /// Program that becomes a pod's first process when started with `LENO_ROLE=pod-init`; this
    /// one if `None`.
    pub executable: Option<PathBuf>,
    /// Ports of the machine that lead to services.
    pub published: Vec<Published>,
    /// Trust domain of the mesh.
    pub trust_domain: String,
    /// DNS domain of services.
    pub cluster_domain: String,
}

impl StageOptions {
    /// Two nodes, no manifests, everything else as Istio's defaults.
    pub fn new(name: StageName) -> Self {
        Self {
            name,
            nodes: 2,
            manifests: Vec::new(),
            watch: true,
            proxies: BTreeMap::new(),
            default_proxy: None,
            executable: None,
            published: Vec::new(),
            trust_domain: leno_model::DEFAULT_TRUST_DOMAIN.to_owned(),
            cluster_domain: leno_model::settings::DEFAULT_CLUSTER_DOMAIN.to_owned(),
        }
    }
}
