//! Connections that cease to be HTTP, such as WebSockets (RFC 9110 §7.8).

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::exchange::Exchange;
use super::refusal::Flag;

/// Carries bytes both ways, once both ends have changed, until both have ended.
///
/// `counted` is what counts the connection until then.
pub(crate) fn carry(client: OnUpgrade, endpoint: OnUpgrade, counted: impl Send + 'static, mut exchange: Exchange) {
    let gate = exchange.gate().clone();
    let carried = gate.carried.token();
    tokio::spawn(async move {
        let _counted = (carried, counted);
        let relayed = async {
            let (client, endpoint) =
                (client.await.map_err(|e| e.to_string())?, endpoint.await.map_err(|e| e.to_string())?);
            let (mut client, mut endpoint) = (TokioIo::new(client), TokioIo::new(endpoint));
            copy_bidirectional(&mut client, &mut endpoint).await.map_err(|e| e.to_string())
        };
        let outcome = tokio::select! {
            outcome = relayed => outcome,
            () = gate.stopped.cancelled() => Err("the waypoint is shutting down".to_owned()),
        };
        match outcome {
            Ok((received, sent)) => exchange.carried(received, sent),
            Err(error) => exchange.broken(Flag::Downstream, format!("the connection broke off: {error}")),
        }
        exchange.finished();
    });
}
