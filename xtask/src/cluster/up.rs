//! `up`: from nothing, or from what an earlier attempt left, to a cluster whose nodes are ready.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::certificates::Identities;
use super::cgroups::Cgroups;
use super::layout::{Layout, State};
use super::plan::Plan;
use super::process::Daemon;
use super::telling::say;
use super::waiting::Wait;
use super::{build, control_plane, host, interrupt, node, programs, status, sysctls, teardown};

/// Starts the cluster, unless it runs.
pub(crate) fn run(layout: &Layout, plan: &Plan) -> Result<()> {
    programs::check(!build::nothing_to_do(layout)?)?;
    let cgroups = Cgroups::find()?;
    let lock = layout.lock()?;
    if let Some(state) = layout.state().filter(|state| state.complete) {
        let ended = status::ended(layout, &cgroups, &state.plan);
        if ended.is_empty() {
            if state.plan != *plan {
                bail!(
                    "a cluster of another shape runs ({} nodes, {:?}); `cargo xtask cluster down` removes it",
                    state.plan.nodes,
                    state.plan.families
                );
            }
            say("the cluster runs already");
            return Ok(());
        }
        say(&format!("of the cluster that was started earlier, {} ended: starting anew", ended.join(", ")));
    }
    interrupt::watch()?;
    let parts = build::all(layout)?;
    teardown::run(layout, &cgroups)?;
    let began = Instant::now();
    let started = start(layout, &cgroups, plan, parts);
    if let Err(error) = started {
        say("removing what was started");
        teardown::run(layout, &cgroups).context("removing what was started")?;
        return Err(error);
    }
    drop(lock);
    say(&format!(
        "{} nodes are ready after {:.1} s\n  export KUBECONFIG={} PATH=$PATH:{}",
        plan.nodes,
        began.elapsed().as_secs_f64(),
        layout.kubeconfig().display(),
        layout.bin().display()
    ));
    Ok(())
}

fn start(layout: &Layout, cgroups: &Cgroups, plan: &Plan, parts: Vec<std::path::PathBuf>) -> Result<()> {
    let mut state = State { plan: plan.clone(), complete: false, parts };
    layout.record(&state)?;
    build::link(layout, &state.parts)?;
    if layout.logs().exists() {
        fs::remove_dir_all(layout.logs()).context("removing old logs")?;
    }
    fs::create_dir_all(layout.logs()).context("creating the directory of logs")?;
    let identities = Identities::of(layout);
    identities.make(plan)?;
    sysctls::keep(layout)?;
    host::lay_bridge(plan)?;
    let mut daemons = control_plane::start(layout, cgroups, plan)?;
    control_plane::furnish(layout, plan)?;
    for node in plan.nodes() {
        node::start(layout, cgroups, plan, node)?;
    }
    node::wait_ready(layout, cgroups, plan, &mut daemons)?;
    wait_for_dns(layout, &mut daemons)?;
    fs::copy(identities.kubeconfig("admin"), layout.kubeconfig()).context("copying the administrator's kubeconfig")?;
    state.complete = true;
    layout.record(&state)
}

fn wait_for_dns(layout: &Layout, daemons: &mut [Daemon]) -> Result<()> {
    let limit = Duration::from_secs(180);
    let mut command = control_plane::kubectl(layout);
    command.args(["rollout", "status", "--namespace=kube-system", "deployment/coredns"]);
    command.arg(format!("--timeout={}s", limit.as_secs()));
    Wait::begin("the cluster's DNS", limit).for_command(&mut control_plane::checks(daemons), command)
}
