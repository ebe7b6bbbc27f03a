//! The environment of a container's process: variables, command line, directory.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use leno_objects::{Container, EnvVar, ObjectMeta, PodSpec};

use crate::cluster::config::Config;

/// Facts about a pod that its containers can ask for with `fieldRef`.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    pub metadata: &'a ObjectMeta,
    pub uid: &'a str,
    pub spec: &'a PodSpec,
    pub node: &'a str,
    pub node_ip: IpAddr,
    pub ips: &'a [IpAddr],
    /// What `configMapKeyRef` and its like refer to.
    pub config: &'a Config,
}

/// The machine's own variables that a local process can't do without. Everything else would make
/// a pod behave differently on the next developer's machine.
const INHERITED: [&str; 6] = ["HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ"];

/// Search path where the caller has none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a container. `programs` is searched before the machine's `PATH`.
///
/// # Errors
/// A `fieldRef` that can't be answered, by name, or a reference to a ConfigMap or a Secret that leads nowhere.
pub(crate) fn variables(
    container: &Container,
    facts: &Facts<'_>,
    programs: &Path,
    machine: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for name in INHERITED {
        if let Some(value) = machine(name) {
            all.insert(name.to_owned(), value);
        }
    }
    let path = machine("PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| PATH.to_owned());
    all.insert("PATH".to_owned(), format!("{}:{path}", programs.display()));
    all.insert("HOSTNAME".to_owned(), facts.metadata.name.to_string());
    for from in &container.env_from {
        all.extend(facts.config.variables(&facts.metadata.namespace, from).map_err(|why| format!("envFrom: {why}"))?);
    }
    for variable in &container.env {
        if let Some(value) = value(variable, facts, &all)? {
            all.insert(variable.name.clone(), value);
        }
    }
    Ok(all.into_iter().collect())
}

/// `None` for a variable that is left out, because what it refers to may be missing.
fn value(variable: &EnvVar, facts: &Facts<'_>, before: &BTreeMap<String, String>) -> Result<Option<String>, String> {
    let Some(source) = &variable.value_from else {
        return Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), before)));
    };
    let Some(field) = &source.field_ref else {
        let value = facts.config.value(&facts.metadata.namespace, source);
        return value.map_err(|why| format!("env {}: {why}", variable.name));
    };
    field_value(&field.field_path, facts).map(Some).ok_or_else(|| {
        format!(
            "env {}: the field {} is unknown; possible are metadata.name, metadata.namespace, metadata.uid, \
             metadata.labels['…'], metadata.annotations['…'], spec.nodeName, spec.serviceAccountName, status.podIP, \
             status.podIPs and status.hostIP",
            variable.name, field.field_path
        )
    })
}

fn field_value(path: &str, facts: &Facts<'_>) -> Option<String> {
    let member = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    let joined = || facts.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Some(match path {
        "metadata.name" => facts.metadata.name.to_string(),
        "metadata.namespace" => facts.metadata.namespace.to_string(),
        "metadata.uid" => facts.uid.to_owned(),
        "spec.nodeName" => facts.node.to_owned(),
        "spec.serviceAccountName" => facts.spec.account().to_owned(),
        "status.podIP" => facts.ips.first()?.to_string(),
        "status.podIPs" => joined(),
        "status.hostIP" => facts.node_ip.to_string(),
        _ => {
            if let Some(key) = member("metadata.labels['") {
                facts.metadata.label(key).unwrap_or_default().to_owned()
            } else {
                facts.metadata.annotation(member("metadata.annotations['")?).unwrap_or_default().to_owned()
            }
        }
    })
}

/// Program and arguments of a container, with `$(NAME)` replaced as Kubernetes does.
///
/// # Errors
/// If there is nothing to run.
pub(crate) fn command_line(container: &Container, env: &[(String, String)]) -> Result<Vec<String>, String> {
    if container.command.is_empty() {
        return Err(format!("container {} has no command: Leno runs local processes, not images", container.name));
    }
    let variables: BTreeMap<_, _> = env.iter().cloned().collect();
    Ok(container.command.iter().chain(&container.args).map(|text| expand(text, &variables)).collect())
}

/// Replaces `$(NAME)` where NAME is known; `$$` stands for one `$`.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((value, tail)) = reference.and_then(|(name, tail)| Some((variables.get(name)?, tail))) {
            out.push_str(value);
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use leno_objects::{EnvVarSource, ObjectFieldSelector};

    use super::*;

    fn env(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
    }

    fn field(name: &str, path: &str) -> EnvVar {
        let field_ref = Some(ObjectFieldSelector { field_path: path.into(), ..Default::default() });
        EnvVar {
            name: name.into(),
            value: None,
            value_from: Some(EnvVarSource { field_ref, ..EnvVarSource::default() }),
        }
    }

    fn build(container: &Container) -> Result<Vec<(String, String)>, String> {
        let metadata = ObjectMeta { name: "web-1".into(), namespace: "shop".into(), ..Default::default() };
        let facts = Facts {
            metadata: &metadata,
            uid: "u-1",
            spec: &PodSpec::default(),
            node: "node-1",
            node_ip: "172.30.1.1".parse().unwrap(),
            ips: &["10.244.1.10".parse().unwrap()],
            config: &Config::default(),
        };
        variables(container, &facts, Path::new("/opt/leno"), |name| (name == "PATH").then(|| "/bin".into()))
    }

    #[test]
    fn fields_and_references() {
        let container = Container {
            name: "c".into(),
            command: vec!["serve".into(), "--on=$(IP):80".into(), "$$(IP)".into(), "$(NOPE)".into()],
            args: vec!["$(BOTH)".into()],
            env: vec![
                field("IP", "status.podIP"),
                field("NAME", "metadata.name"),
                field("SA", "spec.serviceAccountName"),
                env("BOTH", "$(NAME).$(IP)"),
            ],
            ..Default::default()
        };
        let env = build(&container).unwrap();
        let get = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!(get("PATH"), Some("/opt/leno:/bin"));
        assert_eq!(get("SA"), Some("default"));
        assert_eq!(get("BOTH"), Some("web-1.10.244.1.10"));
        assert_eq!(
            command_line(&container, &env).unwrap(),
            ["serve", "--on=10.244.1.10:80", "$(IP)", "$(NOPE)", "web-1.10.244.1.10"]
        );
    }

    #[test]
    fn what_cannot_be_answered_is_said() {
        let container = Container { env: vec![field("X", "spec.nope")], ..Default::default() };
        assert!(build(&container).unwrap_err().contains("spec.nope"));
        let container = Container { name: "x".into(), image: "nginx".into(), ..Default::default() };
        let said = command_line(&container, &[]).unwrap_err();
        assert_eq!(said, "container x has no command: Leno runs local processes, not images");
    }
}
