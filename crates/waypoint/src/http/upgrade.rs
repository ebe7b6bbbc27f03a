//! Connections that cease to be HTTP, such as WebSockets (RFC 9110 §7.8).

use std::sync::Arc;

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use leno_policy::http::Denied;
use tokio::io::copy_bidirectional;

use super::authorize;
use super::client::{Client, View};
use super::consent::Consent;
use super::exchange::Exchange;
use super::head::Asks;
use super::refusal::{Flag, Refusal};
use super::routing;
use super::tokens::Callers;
use crate::guard;

/// A request that asks for another protocol.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    /// On its own: every request has a place for an upgrade, and few have one.
    request: Box<Admitted>,
}

/// A request that policies let pass. They may change their mind.
struct Admitted {
    /// As it came, with its tokens.
    head: Parts,
    asks: Asks,
    callers: Callers,
    /// The authorisers that let it pass.
    asked: Consent,
    /// When, in seconds since the Unix epoch. A token that was good then counts for as long as the connection lives, like a
    /// certificate of a connection does: its end is no end of what it began.
    at: u64,
}

impl Upgrade {
    /// Of a request whose tokens are still in it; `None` if it asks for no other protocol.
    pub(crate) fn of(head: &mut Parts, asks: &Asks, callers: &Callers, asked: &Consent, at: u64) -> Option<Self> {
        let client = asks.upgrade.then(|| head.extensions.remove::<OnUpgrade>()).flatten()?;
        let request =
            Admitted { head: head.clone(), asks: asks.clone(), callers: callers.clone(), asked: asked.clone(), at };
        Some(Self { client, request: Box::new(request) })
    }

    /// Whether it was asked for in HTTP/2.
    pub(crate) fn is_extended(&self) -> bool {
        self.request.asks.extended
    }

    /// Carries bytes both ways, once both ends have changed, until both have ended or the request would be refused.
    ///
    /// `counted` is what counts the connection until then.
    pub(crate) fn carry(self, endpoint: OnUpgrade, counted: impl Send + 'static, mut exchange: Exchange) {
        let Self { client, mut request } = self;
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
                why = request.forbidden(&asker) => Err((Flag::Denied, why)),
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

/// Asks the policies whether a request may pass that was told whose token it carries.
pub(crate) fn judge(
    client: &Client,
    view: &View,
    (head, asks): (&Parts, &Asks),
    callers: &Callers,
    mut note: impl FnMut(String),
) -> Result<(), Denied> {
    let request = routing::seen(client.identity(), head, asks);
    for guard in view.guards() {
        let whose = callers.by(guard);
        guard::judge(guard, &client.tunnel, &view.target, Some((&request, whose)), &mut note)?;
    }
    Ok(())
}

impl Admitted {
    /// Returns when the policies no longer let the request pass, with the reason.
    async fn forbidden(&mut self, client: &Arc<Client>) -> String {
        let mut changes = client.gate.core.state.subscribe();
        loop {
            if let Err(why) = self.still_passes(client).await {
                return why;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn still_passes(&mut self, client: &Arc<Client>) -> Result<(), String> {
        let view = client.view();
        if authorize::asks_somebody(view.guards()) {
            // Only those who have not let it pass before are asked.
            let asking = (view.guards(), &view.target);
            let asked = authorize::ask(client, &view, asking, (&mut self.head, &self.asks), &mut self.asked);
            Box::pin(asked).await.map_err(|refusal| refusal.reason)?;
        }
        let callers = Callers::of(client, &view, (&self.head, &self.asks), &self.callers, self.at).await;
        self.callers = callers.map_err(|error| Refusal::token(&error).reason)?;
        let (mut head, mut asks) = (self.head.clone(), self.asks.clone());
        self.callers.tell(&mut head, &mut asks).map_err(|refusal| refusal.reason)?;
        judge(client, &view, (&head, &asks), &self.callers, |_| ()).map_err(|denied| denied.to_string())
    }
}
