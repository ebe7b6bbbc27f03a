//! Decides whether a connection may reach the pod's program, and connects to it.

use std::sync::Arc;

use leno_policy::{AllowReason, Decision, DenyReason, Verdict};
use leno_proxy::threads::Lives;
use leno_tunnel::{RelayError, timers};
use tokio::net::TcpStream;

use crate::dial;
use crate::failure::Failure;
use crate::pod::Pod;
use crate::pod::connections::{Cut, InboundConnection, Listed};
use crate::report::{Carried, Report};

/// A connection with the pod's program that may go on.
pub(crate) struct Admitted {
    pub(crate) program: TcpStream,
    pub(crate) governed: Governed,
}

/// Keeps a connection listed, so that a change of policies can cut it.
pub(crate) struct Governed {
    _listed: Listed,
    cut: Arc<Cut>,
}

impl Governed {
    /// Resolves when the connection must end: policies no longer allow it, or its pod stops.
    pub(crate) async fn ended(&self, pod: &Pod) {
        tokio::select! {
            () = self.cut.cut() => {}
            () = pod.stopped() => {}
        }
    }

    /// The connection stands, and is shown as open from here on.
    pub(crate) fn opened(&self, report: Report) -> Carried {
        let carried = report.opened();
        self.cut.show(carried.traffic());
        carried
    }

    /// Tells how the connection ended.
    pub(crate) fn finish(self, lives: &Lives, carried: Carried, outcome: Result<(), RelayError>) {
        lives.carried(carried.bytes().iter().sum());
        carried.finished(outcome, self.cut.reason());
    }
}

/// Lists the connection, evaluates the policies, and connects to the program with the caller's address as source.
/// `caller` is the port that a plaintext connection came from.
pub(crate) async fn admit_and_dial(
    pod: &Arc<Pod>,
    connection: InboundConnection,
    caller: Option<u16>,
    report: &mut Report,
) -> Result<Admitted, Failure> {
    let (source_ip, address) = (connection.source_ip, connection.destination);
    // Listed first. Otherwise a policy that arrives between the decision and the listing would never be applied to this
    // connection.
    let (listed, cut) = pod.connections().list_inbound(connection.clone())?;
    let mut decision = decide(pod, &connection).await?;
    if waits(&decision) {
        decision = tokio::select! {
            decision = Box::pin(decide_soon(pod, &connection)) => decision?,
            () = cut.cut() => return Err(cut.failure()),
        };
    }
    report.dry_run(&decision.dry_run);
    match decision.verdict {
        Verdict::Deny(reason) => return Err(Failure::Denied(Arc::new(reason))),
        Verdict::Allow(AllowReason::Policy(policy)) => report.policy(&policy),
        Verdict::Allow(AllowReason::NoAllowPolicy) => {}
    }
    // A pod that reaches itself through its own service can't have its own address as a foreign source: the packets
    // would never leave the loopback path that the rules watch.
    let source = (pod.spoofs_source() && source_ip != address.ip()).then_some(source_ip);
    let program = tokio::select! {
        program = dial::program(pod, address, source, caller) => program?,
        () = cut.cut() => return Err(cut.failure()),
    };
    Ok(Admitted { program, governed: Governed { _listed: listed, cut } })
}

async fn decide(pod: &Pod, connection: &InboundConnection) -> Result<Decision, Failure> {
    let (mesh, workload) = pod.workload().await?;
    Ok(leno_policy::authorize(&mesh, &workload, &connection.for_policy()))
}

/// Whether it depends on a policy that has not arrived.
fn waits(decision: &Decision) -> bool {
    matches!(decision.verdict, Verdict::Deny(DenyReason::UnknownPolicy { .. }))
}

/// Waits for the policies that decide, because the control plane may send a workload before the policies that it names.
/// If they don't come, the connection is refused for that reason.
async fn decide_soon(pod: &Pod, connection: &InboundConnection) -> Result<Decision, Failure> {
    let mut changes = pod.context().core.state.subscribe();
    let known = timers::timeout(pod.context().core.config.workload_timeout, async {
        loop {
            let decision = decide(pod, connection).await?;
            // If the sender is gone, there is nothing to wait for.
            if !waits(&decision) || changes.changed().await.is_err() {
                return Ok(decision);
            }
        }
    });
    match known.await {
        Ok(known) => known,
        Err(_) => decide(pod, connection).await,
    }
}
