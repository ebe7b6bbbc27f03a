//! May a connection or a request pass? What policies are asked about it, and which ones.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::Mesh;
use leno_model::Workload;
use leno_policy::http::{Caller, Denied, Guard, Request, Subject};
use leno_policy::{Connection, ServerName, Verdict, WaypointTarget, authorize_selected};
use leno_proxy::tunnels::Tunnel;

use crate::connection::target::Asked;
use crate::failure::Failure;
use crate::state::shared::Gate;

/// The policies of what was asked for.
pub(crate) fn guard(gate: &Gate, mesh: &Mesh, own: &Workload, target: &WaypointTarget) -> Arc<Guard> {
    gate.guards.of(mesh, own, target.service().map(|service| &service.id))
}

/// What is to pass.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    /// A request that authorisers let pass, with whose token it carries.
    Request(&'a Request<'a>, &'a Caller),
    /// A connection that is passed on unread.
    Unread(&'a ServerName),
}

/// Decides whether something may pass. `note` gets what is only logged.
pub(crate) fn judge(
    guard: &Guard,
    tunnel: &Tunnel,
    target: &WaypointTarget,
    what: What<'_>,
    mut note: impl FnMut(String),
) -> Result<(), Denied> {
    if guard.is_empty() {
        return Ok(());
    }
    let connection = Connection {
        source: Some(&tunnel.identity),
        source_ip: tunnel.peer.ip(),
        destination: target.seen_by_policies(),
    };
    let subject = match what {
        // Its authorisers were asked before, as it came: what they change is not asked about again.
        What::Request(request, caller) => Subject::new(connection, Some(request)).by(caller).authorized(),
        What::Unread(name) => name.subject(connection),
    };
    let judgement = guard.judge(&subject);
    for one in &judgement.notes {
        note(format!("policy {} {}", one.policy, one.says));
    }
    judgement.verdict.map(drop)
}

/// Asks the policies that select the waypoint's own pods.
pub(crate) fn own(gate: &Gate, tunnel: &Tunnel, asked: &Asked) -> Result<(), Failure> {
    let own = &asked.own;
    let destination = SocketAddr::new(tunnel.local.ip(), gate.config.listen.port());
    let connection = Connection { source: Some(&tunnel.identity), source_ip: tunnel.peer.ip(), destination };
    match authorize_selected(&asked.mesh, own, &connection).verdict {
        Verdict::Allow(_) => Ok(()),
        Verdict::Deny(reason) => Err(Failure::OwnDenied(Arc::new(reason))),
    }
}
