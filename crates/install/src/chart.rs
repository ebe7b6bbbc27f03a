//! The charts, as they lie in `charts/`.

/// One chart's files.
pub(crate) struct Chart {
    /// Its directory below `charts/`.
    pub(crate) name: &'static str,
    pub(crate) values: &'static str,
    /// Templates that others use: name and text.
    pub(crate) parts: &'static [(&'static str, &'static str)],
    /// Templates of objects: name and text.
    pub(crate) templates: &'static [(&'static str, &'static str)],
}

macro_rules! files {
    ($chart:literal: $($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../charts/", $chart, "/templates/", $name)))),*]
    };
}

/// The mesh.
pub(crate) const LENO: Chart = Chart {
    name: "leno",
    values: include_str!("../../../charts/leno/values.yaml"),
    parts: files!("leno": "_parts.tpl"),
    templates: files!("leno": "namespace.yaml", "control-rbac.yaml", "mesh-config.yaml", "control.yaml", "agent.yaml", "node.yaml", "waypoint.yaml", "network-policy.yaml", "dashboard.yaml"),
};

/// The values that [`LENO`] takes, as JSON Schema.
pub(crate) const SCHEMA: &str = include_str!("../../../charts/leno/values.schema.json");

/// The definitions of the kinds of Istio and of the Gateway API that the mesh reads.
pub(crate) const CRDS: Chart = Chart {
    name: "leno-crds",
    values: include_str!("../../../charts/leno-crds/values.yaml"),
    parts: &[],
    templates: files!("leno-crds": "authorizationpolicies.yaml", "peerauthentications.yaml", "requestauthentications.yaml", "gateways.yaml", "gatewayclasses.yaml", "httproutes.yaml", "grpcroutes.yaml", "tlsroutes.yaml", "tcproutes.yaml", "referencegrants.yaml", "destinationrules.yaml", "virtualservices.yaml"),
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn charts() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts")
    }

    #[test]
    fn every_template_is_part_of_the_program() {
        for chart in [&LENO, &CRDS] {
            let listed: BTreeSet<_> =
                chart.parts.iter().chain(chart.templates).map(|(name, _)| (*name).to_owned()).collect();
            let directory = charts().join(chart.name).join("templates");
            let there = fs::read_dir(directory).expect("templates").map(|entry| entry.expect("an entry").file_name());
            let there: BTreeSet<_> = there.map(|name| name.into_string().expect("UTF-8")).collect();
            assert_eq!(listed, there, "{}", chart.name);
        }
    }

    #[test]
    fn charts_have_the_version_of_the_program() {
        for chart in [&LENO, &CRDS] {
            let text = fs::read_to_string(charts().join(chart.name).join("Chart.yaml")).expect("a Chart.yaml");
            let chart = crate::yaml::object(&text).expect("YAML");
            assert_eq!(
                (&chart["version"], &chart["appVersion"]),
                (&env!("CARGO_PKG_VERSION").into(), &env!("CARGO_PKG_VERSION").into())
            );
        }
    }
}
