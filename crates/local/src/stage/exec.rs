//! Running a program in a pod that runs.

use std::os::fd::OwnedFd;

use crate::Error;
use crate::stage::context::Context;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::Report;
use crate::stage::pod::sandbox::{NotStarted, Process, Program};

/// A program to be run in a pod.
pub(crate) struct Order {
    /// The first if none is named.
    pub container: Option<String>,
    pub argv: Vec<String>,
    /// Variables on top of the container's.
    pub env: Vec<(String, String)>,
    /// Standard input, output, error.
    pub stdio: Vec<OwnedFd>,
}

/// Runs a program in a container of a pod.
///
/// # Errors
/// If the pod doesn't run or has no such container, or the program can't be started.
pub(crate) async fn exec(ctx: &Context, plan: &PodPlan, report: Report, order: Order) -> Result<Process, Error> {
    let Order { container, argv, env: extra, stdio } = order;
    let Ok(stdio) = <[OwnedFd; 3]>::try_from(stdio) else {
        return Err(Error::Refused("exec needs standard input, output and error".to_owned()));
    };
    let container = container_of(&plan.pod, container.as_deref())?;
    let Some(sandbox) = report.sandbox else {
        let why = if report.message.is_empty() { String::new() } else { format!(": {}", report.message) };
        return Err(Error::Refused(format!("pod {} is not running ({}){why}", plan.label(), report.status)));
    };
    let mut env = plan.environment(container, ctx).map_err(Error::Refused)?;
    for (name, value) in extra {
        env.retain(|(known, _)| *known != name);
        env.push((name, value));
    }
    let cwd = Some(plan.directory(container, ctx).display().to_string());
    let started = sandbox.run(Program { argv, env, cwd, stdio }).await;
    started.map_err(|NotStarted { code, reason }| Error::NotStarted { code, reason })
}

/// The container of a pod that is meant, the first if none is named.
///
/// # Errors
/// [`Error::NotFound`], naming those that there are.
pub(crate) fn container_of<'a>(
    pod: &'a leno_objects::Pod,
    wanted: Option<&str>,
) -> Result<&'a leno_objects::Container, Error> {
    let found = match wanted {
        Some(name) => pod.spec.all_containers().find(|container| container.name == name),
        None => pod.spec.containers.first(),
    };
    found.ok_or_else(|| {
        let known: Vec<_> = pod.spec.all_containers().map(|container| container.name.as_str()).collect();
        let wanted = wanted.unwrap_or_default();
        Error::NotFound(format!("pod {} has no container {wanted}; it has: {}", pod.metadata.name, known.join(", ")))
    })
}
