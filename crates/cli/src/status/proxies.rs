//! What the proxies say of themselves, and what the control plane says of them.

use std::fmt;

use leno_control::Followers;
use serde::Serialize;
use serde_json::Value;

/// The page on which a proxy tells how it is.
pub(super) const PAGE: &str = "/status";

/// One proxy. What it does not tell is `None`, as of a ztunnel in Leno's place.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Proxy {
    /// Whether it has accepted all that the control plane has published; `None` if the control plane can't be asked.
    pub(super) in_sync: Option<bool>,
    pub(super) version: Option<String>,
    pub(super) certificates: Option<Certificates>,
    /// Pods that it serves.
    pub(super) pods: Option<u64>,
    /// Pods that it was handed and can't serve yet.
    pub(super) pending_pods: Option<u64>,
    /// Pods that it serves and that no control plane has told it of.
    pub(super) untold_pods: Option<Vec<String>>,
    /// Connections that stand in it.
    pub(super) connections: Option<u64>,
    /// Connections that the proxies before it still wait for.
    pub(super) draining_connections: Option<u64>,
    /// How many proxies say so.
    #[serde(skip)]
    pub(super) draining: usize,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// The certificates of a proxy's pods.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Certificates {
    held: u64,
    /// Identities without a valid one.
    missing: u64,
    /// In RFC 3339.
    first_ends: Option<String>,
    last_ends: Option<String>,
}

impl fmt::Display for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first_ends {
            Some(end) => write!(f, "{end}")?,
            None => write!(f, "-")?,
        }
        if self.missing > 0 { write!(f, " ({} missing)", self.missing) } else { Ok(()) }
    }
}

impl Proxy {
    /// As its page says.
    pub(super) fn of(page: anyhow::Result<String>) -> Self {
        let read = page.and_then(|page| Ok(serde_json::from_str::<Value>(&page)?));
        let told = match read {
            Ok(told) => told,
            Err(error) => return Self { problem: Some(format!("{error:#}")), ..Self::default() },
        };
        let link = &told["controlPlane"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let away = (link["connected"] == false).then(|| {
            let reason = link["reason"].as_str().unwrap_or_default();
            format!("not connected to the control plane ({reason}); what it knew stays in force")
        });
        let untold = told["untoldPods"].as_array().map(|pods| pods.iter().filter_map(&text).collect::<Vec<_>>());
        let strangers = untold.as_ref().filter(|pods| !pods.is_empty()).map(|pods| {
            format!("it has not been told of {}, so nobody is let in there (`leno check`)", pods.join(", "))
        });
        let problem = [away.clone(), strangers].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let certificates = &told["certificates"];
        let draining = told["draining"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            in_sync: away.is_some().then_some(false),
            version: text(&told["version"]),
            certificates: certificates.is_object().then(|| Certificates {
                held: certificates["held"].as_u64().unwrap_or_default(),
                missing: certificates["missing"].as_u64().unwrap_or_default(),
                first_ends: text(&certificates["firstEnds"]),
                last_ends: text(&certificates["lastEnds"]),
            }),
            pods: told["pods"].as_u64(),
            pending_pods: told["pendingPods"].as_u64(),
            untold_pods: untold,
            connections: told["connections"].as_u64(),
            draining_connections: told["draining"]
                .is_array()
                .then(|| draining.iter().filter_map(|one| one["connections"].as_u64()).sum()),
            draining: draining.len(),
            problem: (!problem.is_empty()).then_some(problem),
        }
    }

    /// As the control planes say, if all of them could be asked. `name` is part of its node id.
    pub(super) fn judge(&mut self, node: &str, name: &str, planes: &Result<Vec<Followers>, String>) {
        let planes = match planes {
            Ok(planes) => planes,
            Err(why) => {
                self.problem.get_or_insert_with(|| format!("whether it is in sync is not known: {why}"));
                return;
            }
        };
        let all = planes.iter().flat_map(|plane| &plane.proxies);
        // The one before it may drain, and follows until it ends.
        let of_pod = |id: &str| id.split('~').nth(2).is_some_and(|pod| pod.split('.').next() == Some(name));
        let own: Vec<_> = all.filter(|one| one.node.as_deref() == Some(node) && of_pod(&one.id)).collect();
        self.in_sync = Some(own.iter().any(|one| one.in_sync));
        let refused = own.iter().flat_map(|one| &one.refused).next();
        if let Some(why) = refused {
            self.problem = Some(format!("it has refused a part of the mesh: {why}"));
        }
    }
}
