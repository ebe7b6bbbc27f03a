//! Checks of pods and their controllers that types can't express: names, ranges, and fields that must fit each other.
//!
//! Each check is declared at its field (see `object!`), so that its error has the path and line of that field. The
//! rules are those of the Kubernetes and Istio API servers.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Container, ContainerPort, DeploymentSpec, EnvVar, Probe, RestartPolicy, Volume};
use crate::decode::{Context, Problem};
use crate::scalars::IntOrString;
use crate::validate::no_duplicates;

type Check = Result<(), Problem>;

pub(crate) fn init_containers(containers: &Arc<[Container]>, _: &mut Context) -> Check {
    no_duplicates(containers.iter().map(|c| c.name.as_str()), ".name", "container name")?;
    for (i, container) in containers.iter().enumerate() {
        if !matches!(container.restart_policy, None | Some(RestartPolicy::Always)) {
            return Err(Problem::at(
                format!("[{i}].restartPolicy"),
                "may only be Always, for one that runs beside the others",
            ));
        }
        if let Some(probe) = &container.readiness_probe {
            if !container.is_sidecar() {
                let message = "is for containers that go on running: this one has to end before the next begins";
                return Err(Problem::at(format!("[{i}].readinessProbe"), message));
            }
            self::probe(probe, &format!("[{i}].readinessProbe"), &container.ports)?;
        }
    }
    Ok(())
}

pub(crate) fn volumes(volumes: &Arc<[Volume]>, _: &mut Context) -> Check {
    no_duplicates(volumes.iter().map(|volume| volume.name.as_str()), ".name", "volume name")?;
    for (i, volume) in volumes.iter().enumerate() {
        let sources = [
            volume.config_map.is_some(),
            volume.secret.is_some(),
            volume.empty_dir.is_some(),
            volume.persistent_volume_claim.is_some(),
            volume.host_path.is_some(),
            volume.projected.is_some(),
        ];
        if sources.iter().filter(|there| **there).count() > 1 {
            return Err(Problem::at(format!("[{i}]"), "may have only one source"));
        }
    }
    Ok(())
}

pub(crate) fn containers(containers: &Arc<[Container]>, _: &mut Context) -> Check {
    if containers.is_empty() {
        return Err(Problem::here("needs at least one container"));
    }
    no_duplicates(containers.iter().map(|c| c.name.as_str()), ".name", "container name")?;
    // A pod's containers share its network namespace and so its ports.
    let mut listeners = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in container.ports.iter().enumerate() {
            let at = format!("[{i}].ports[{j}]");
            if let Some(other) = listeners.insert((port.protocol.as_str(), port.container_port), &container.name)
                && *other != container.name
            {
                let message = format!("port {} is already used by container {other:?}", port.container_port);
                return Err(Problem::at(format!("{at}.containerPort"), message));
            }
            if !port.name.is_empty()
                && let Some(other) = names.insert(&port.name, &container.name)
            {
                let message = format!("port name {:?} is already used by container {other:?}", port.name);
                return Err(Problem::at(format!("{at}.name"), message));
            }
        }
        if let Some(probe) = &container.readiness_probe {
            self::probe(probe, &format!("[{i}].readinessProbe"), &container.ports)?;
        }
    }
    Ok(())
}

fn probe(probe: &Probe, at: &str, ports: &[ContainerPort]) -> Check {
    let actions = [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some()];
    match actions.iter().filter(|there| **there).count() {
        1 => {}
        0 => return Err(Problem::at(at, "needs httpGet, tcpSocket or exec")),
        _ => return Err(Problem::at(at, "may have only one of httpGet, tcpSocket and exec")),
    }
    if probe.exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
        return Err(Problem::at(format!("{at}.exec.command"), "needs a program to run"));
    }
    let at_least_one = [
        ("periodSeconds", probe.period_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (field, value) in at_least_one {
        if value == 0 {
            return Err(Problem::at(format!("{at}.{field}"), "must be at least 1"));
        }
    }
    let http = probe.http_get.as_ref().map(|action| (&action.port, "httpGet"));
    let tcp = probe.tcp_socket.as_ref().map(|action| (&action.port, "tcpSocket"));
    for (port, action) in http.into_iter().chain(tcp) {
        if let IntOrString::String(name) = port
            && !ports.iter().any(|p| p.name == *name)
        {
            let known: Vec<_> = ports.iter().map(|p| p.name.as_str()).filter(|name| !name.is_empty()).collect();
            let message = format!("the container has no port named {name:?}; it has [{}]", known.join(", "));
            return Err(Problem::at(format!("{at}.{action}.port"), message));
        }
    }
    Ok(())
}

pub(crate) fn container_ports(ports: &Vec<ContainerPort>, _: &mut Context) -> Check {
    no_duplicates(ports.iter().map(|p| p.name.as_str()), ".name", "port name")?;
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        if !seen.insert((port.protocol.as_str(), port.container_port)) {
            let message = format!("port {} is listed twice", port.container_port);
            return Err(Problem::at(format!("[{i}].containerPort"), message));
        }
    }
    Ok(())
}

pub(crate) fn env(env: &Vec<EnvVar>, cx: &mut Context) -> Check {
    for (i, var) in env.iter().enumerate() {
        if var.value.is_some() && var.value_from.is_some() {
            return Err(Problem::at(format!("[{i}]"), "has both value and valueFrom"));
        }
        if let Some(reference) = var.value_from.as_ref().and_then(|from| from.field_ref.as_ref())
            && !is_field_path(&reference.field_path)
        {
            let message = format!("{:?} is not a field a variable can have", reference.field_path);
            return Err(Problem::at(format!("[{i}].valueFrom.fieldRef.fieldPath"), message));
        }
    }
    // Kubernetes uses the last one and warns as well.
    if let Err(problem) = no_duplicates(env.iter().map(|v| v.name.as_str()), ".name", "variable") {
        let warning = format!("{}{}: {}; the later one counts", cx.path(), problem.at, problem.message);
        cx.warnings.push(warning);
    }
    Ok(())
}

fn is_field_path(path: &str) -> bool {
    const PLAIN: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    PLAIN.contains(&path)
        || ["metadata.labels['", "metadata.annotations['"]
            .iter()
            .any(|start| path.strip_prefix(start).and_then(|rest| rest.strip_suffix("']")).is_some())
}

pub(crate) fn env_name(name: &String, _: &mut Context) -> Check {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Problem::here(format!("{name:?} is no name of a variable: not empty, no '='")));
    }
    Ok(())
}

pub(crate) fn deployment_spec(spec: &DeploymentSpec, _: &mut Context) -> Check {
    if spec.selector.match_labels.is_empty() && spec.selector.match_expressions.is_empty() {
        return Err(Problem::at(".selector", "must not be empty: it says which pods belong to the Deployment"));
    }
    if !spec.selector.matches(&spec.template.metadata.labels) {
        return Err(Problem::at(".selector", "does not match spec.template.metadata.labels"));
    }
    Ok(())
}
