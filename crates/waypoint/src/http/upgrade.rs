//! Connections that cease to be HTTP, such as WebSockets (RFC 9110 §7.8).

use std::sync::Arc;

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use leno_policy::http::Denied;
use tokio::io::copy_bidirectional;

use super::client::{Client, View};
use super::exchange::Exchange;
use super::head::Asks;
use super::refusal::Flag;
use super::routing;
use crate::guard;

/// A request that asks for another protocol.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    /// As policies have seen it. They may change their mind.
    head: Parts,
    asks: Asks,
}

impl Upgrade {
    /// Of a request that policies let pass; `None` if it asks for no other protocol.
    pub(crate) fn of(head: &mut Parts, asks: &Asks) -> Option<Self> {
        let client = asks.upgrade.then(|| head.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, head: head.clone(), asks: asks.clone() })
    }

    /// Whether it was asked for in HTTP/2.
    pub(crate) fn is_extended(&self) -> bool {
        self.asks.extended
    }

    /// Carries bytes both ways, once both ends have changed, until both have ended or the request would be refused.
    ///
    /// `counted` is what counts the connection until then.
    pub(crate) fn carry(self, endpoint: OnUpgrade, counted: impl Send + 'static, mut exchange: Exchange) {
        let Self { client, head, asks } = self;
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
            let asker = exchange.client().clone();
            let outcome = tokio::select! {
                outcome = relayed => outcome.map_err(|error| (Flag::Downstream, format!("the connection broke off: {error}"))),
                denied = forbidden(&asker, &head, &asks) => Err((Flag::Denied, denied.to_string())),
                () = gate.stopped.cancelled() => {
                    Err((Flag::Downstream, "the connection broke off: the waypoint is shutting down".to_owned()))
                }
            };
            match outcome {
                Ok((received, sent)) => exchange.carried(received, sent),
                Err((flag, error)) => exchange.broken(flag, error),
            }
            exchange.finished();
        });
    }
}

/// Asks the policies whether a request may pass.
pub(crate) fn judge(
    client: &Client,
    view: &View,
    (head, asks): (&Parts, &Asks),
    mut note: impl FnMut(String),
) -> Result<(), Denied> {
    let request = routing::seen(client.identity(), head, asks);
    for guard in [Some(&view.guard), view.left_guard.as_ref()].into_iter().flatten() {
        guard::judge(guard, &client.tunnel, &view.target, Some(&request), &mut note)?;
    }
    Ok(())
}

/// Returns when the policies no longer let the request pass.
async fn forbidden(client: &Arc<Client>, head: &Parts, asks: &Asks) -> Denied {
    let mut changes = client.gate.core.state.subscribe();
    loop {
        if let Err(denied) = judge(client, &client.view(), (head, asks), |_| ()) {
            return denied;
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
