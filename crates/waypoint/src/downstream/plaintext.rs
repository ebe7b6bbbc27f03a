//! Connections in the clear, served as if they had come in a tunnel. They are for tests and measurements of HTTP alone.
//!
//! Nobody proves anything on them, so everybody who reaches such a listener is taken for the waypoint itself. There is none
//! unless it is asked for.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_policy::waypoint_target;
use leno_proxy::peers::Proof;
use leno_proxy::streams::{accept_next, canonical, hand_over, reset};
use leno_proxy::threads::Worker;
use leno_proxy::tunnels::Tunnel;
use tokio::net::{TcpListener, TcpStream};

use crate::connection::record::{self, Report};
use crate::connection::target::Asked;
use crate::downstream::http as requests;
use crate::failure::Failure;
use crate::request::client::Client;
use crate::state::shared::Gate;
use crate::transport::wire::Wire;

/// The beginning of HTTP/2 by prior knowledge (RFC 9113 §3.4). No method of HTTP/1.1 begins like this.
const HTTP2: &[u8; 3] = b"PRI";

/// Accepts connections until the waypoint closes. Threads take them in turn.
pub(crate) async fn accept(gate: Arc<Gate>, listener: TcpListener, authority: Arc<str>) {
    let mut lanes = gate.lanes.iter().cycle();
    while let Some((stream, peer)) = accept_next(&listener, gate.closing.cancelled()).await {
        let Some(lane) = lanes.next() else { return };
        let (carried, worker) = (gate.carried.token(), lane.worker.clone());
        let (gate, authority) = (gate.clone(), authority.clone());
        hand_over(stream, peer, &lane.worker, move |stream| async move {
            let _carried = carried;
            let local = stream.local_addr().ok().map(canonical);
            match ask(&gate, &stream, worker, peer, &authority).await {
                Ok((client, http2)) => requests::serve(client, Wire::tcp(stream), http2).await,
                Err(failure) => {
                    record::tunnel_refused(&gate, peer, local, &failure);
                    reset(stream);
                }
            }
        });
    }
}

/// Who is served, and whether in HTTP/2.
async fn ask(
    gate: &Arc<Gate>,
    stream: &TcpStream,
    worker: Worker,
    peer: SocketAddr,
    authority: &str,
) -> Result<(Arc<Client>, bool), Failure> {
    let local = stream.local_addr().map_err(|error| Failure::NoAddress(Arc::new(error)))?;
    let (mesh, own) = gate.own.workload().await?;
    let identity = gate.core.identity(&own).await?;
    let target = waypoint_target(&mesh, &own, authority).map_err(|refusal| Failure::Refused(Arc::new(refusal)))?;
    let tunnel = Arc::new(Tunnel {
        peer,
        local: canonical(local),
        identity: identity.certificate.identity().clone(),
        proof: Proof::own(&identity),
        worker,
    });
    let asked = Asked { authority: authority.to_owned(), target, mesh, own, passed: 0 };
    let mut report = Report::new(gate, &tunnel);
    report.asked(&tunnel, &asked);
    let mut first = [0; HTTP2.len()];
    let http2 = loop {
        // A connection that breaks now, the HTTP library will notice.
        let Ok(count @ 1..) = stream.peek(&mut first).await else { break false };
        if first[..count] != HTTP2[..count] {
            break false;
        }
        if count == HTTP2.len() {
            break true;
        }
        tokio::task::yield_now().await;
    };
    Ok((Client::new(gate, &tunnel, asked, report), http2))
}
