//! The host's part of the network: a bridge, a cable from it to each node, and routes to the nodes' pods.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::plan::{BRIDGE, HOST_4, HOST_6, Node, Plan};

/// Lays the bridge.
pub(crate) fn lay_bridge(plan: &Plan) -> Result<()> {
    refuse_taken_addresses()?;
    ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    ip(&["addr", "add", &format!("{HOST_4}/24"), "dev", BRIDGE])?;
    if plan.dual() {
        if !std::path::Path::new("/proc/net/if_inet6").exists() {
            bail!("this kernel has no IPv6; `--families ipv4` starts a cluster without");
        }
        // Nobody else is on this bridge: an address need not be asked for before it is used.
        ip(&["-6", "addr", "add", &format!("{HOST_6}/64"), "dev", BRIDGE, "nodad"])?;
    }
    ip(&["link", "set", BRIDGE, "up"])
}

/// Connects a node, whose first process is `pid`, and leads its pods' addresses to it.
pub(crate) fn connect(plan: &Plan, node: Node, pid: i32) -> Result<()> {
    let cable = node.cable();
    ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid.to_string()])?;
    ip(&["link", "set", &cable, "master", BRIDGE, "up"])?;
    // Those of a node that boots again are there already.
    ip(&["route", "replace", &node.pods_4(), "via", &node.address_4().to_string(), "dev", BRIDGE])?;
    if plan.dual() {
        ip(&["-6", "route", "replace", &node.pods_6(), "via", &node.address_6().to_string(), "dev", BRIDGE])?;
    }
    Ok(())
}

/// Takes a node's cable away.
pub(crate) fn disconnect(node: Node) -> Result<()> {
    remove_link(&node.cable())
}

/// Takes the bridge and the cables away; the routes go with them.
pub(crate) fn remove() -> Result<()> {
    links()?.iter().try_for_each(|link| remove_link(link))
}

fn remove_link(link: &str) -> Result<()> {
    let is_there = || links().map(|all| all.iter().any(|other| other == link));
    ip(&["link", "del", link]).or_else(|error| if is_there()? { Err(error) } else { Ok(()) })
}

/// The links of a cluster that exist.
pub(crate) fn links() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/class/net").context("listing the links")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbered = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        if name == BRIDGE || name.strip_prefix("lcn").is_some_and(numbered) {
            found.push(name);
        }
    }
    Ok(found)
}

fn refuse_taken_addresses() -> Result<()> {
    let taken = output(&["-4", "route", "show", "table", "all", "root", "172.30.0.0/16"])?;
    if let Some(route) = taken.lines().next() {
        bail!("172.30.0.0/24 is wanted for the nodes, and this machine uses it already: {route}");
    }
    Ok(())
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &[&str]) -> Result<()> {
    output(arguments).map(drop)
}

fn output(arguments: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(arguments).output().context("running ip")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
