//! Connections that cease to be HTTP, such as WebSockets (RFC 9110 §7.8).

use std::sync::Arc;

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use leno_policy::WaypointTarget;
use leno_policy::http::{Denied, Destination, Guard};
use tokio::io::copy_bidirectional;

use crate::connection::authorise::{self, What};
use crate::connection::target::backend;
use crate::phases::ext_authz;
use crate::phases::jwt::Callers;
use crate::phases::route;
use crate::request::client::{Client, View};
use crate::request::consent::Consent;
use crate::request::head::Asks;
use crate::request::record::Exchange;
use crate::request::refusal::{Flag, Refusal};

/// A request that asks for another protocol.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    /// On its own: every request has a place for an upgrade, and few have one.
    request: Box<Admitted>,
    /// The backend that a route has chosen, with what it was asked.
    backend: Option<Box<(WaypointTarget, Admitted)>>,
}

/// A request that policies let pass. They may change their mind.
pub(crate) struct Admitted {
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
        let request = Admitted::new((head, asks), callers, asked, at);
        Some(Self { client, request: Box::new(request), backend: None })
    }

    /// It goes to a backend that a route has chosen, whose own policies have let this pass.
    pub(crate) fn goes_to(&mut self, backend: &WaypointTarget, request: Admitted) {
        self.backend = Some(Box::new((backend.clone(), request)));
    }

    /// Whether it was asked for in HTTP/2.
    pub(crate) fn is_extended(&self) -> bool {
        self.request.asks.extended
    }

    /// Carries bytes both ways, once both ends have changed, until both have ended or the request would be refused.
    ///
    /// `counted` is what counts the connection until then.
    pub(crate) fn carry(self, endpoint: OnUpgrade, counted: impl Send + 'static, mut exchange: Exchange) {
        let Self { client, mut request, mut backend } = self;
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
                why = forbidden(&asker, &mut request, backend.as_deref_mut()) => Err((Flag::Denied, why)),
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

/// Asks the policies whether a request for `target` may pass that was told whose token it carries.
pub(crate) fn judge<'g>(
    client: &Client,
    (guards, target): (impl Iterator<Item = &'g Arc<Guard>>, &WaypointTarget),
    (head, asks): (&Parts, &Asks),
    callers: &Callers,
    mut note: impl FnMut(String),
) -> Result<(), Denied> {
    let request = route::seen(client.identity(), head, asks);
    for guard in guards {
        let whose = callers.by(guard);
        authorise::judge(guard, &client.tunnel, target, What::Request(&request, whose), &mut note)?;
    }
    Ok(())
}

/// Returns when the policies no longer let a request pass, with the reason: those of what was asked for, or those of the backend
/// to which a route has sent it.
async fn forbidden(
    client: &Arc<Client>,
    request: &mut Admitted,
    mut backend: Option<&mut (WaypointTarget, Admitted)>,
) -> String {
    let mut changes = client.gate.core.state.subscribe();
    loop {
        let view = client.view();
        if let Err(why) = request.still_passes(client, &view, || view.guards(), &view.target).await {
            return why;
        }
        if let Some((target, request)) = &mut backend
            && let Err(why) = still_passes_at(target, request, client, &view).await
        {
            return why;
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Whether a backend's own policies let a request pass, as they are now.
async fn still_passes_at(
    target: &WaypointTarget,
    request: &mut Admitted,
    client: &Arc<Client>,
    view: &View,
) -> Result<(), String> {
    // What is gone, or is another waypoint's, has no policies here.
    let now = target
        .routed()
        .and_then(|(service, port)| backend(&view.mesh, &view.target, &Destination { service: service.clone(), port }));
    let guard = now.as_ref().and_then(|now| client.gate.guards.of_backend(&view.mesh, &view.own, &view.target, now));
    match (now, guard) {
        (Some(now), Some(guard)) => request.still_passes(client, view, || std::iter::once(&guard), &now).await,
        _ => Ok(()),
    }
}

impl Admitted {
    /// With tokens that are still in it.
    pub(crate) fn new((head, asks): (&Parts, &Asks), callers: &Callers, asked: &Consent, at: u64) -> Self {
        Self { head: head.clone(), asks: asks.clone(), callers: callers.clone(), asked: asked.clone(), at }
    }

    async fn still_passes<'g, G: Iterator<Item = &'g Arc<Guard>>>(
        &mut self,
        client: &Arc<Client>,
        view: &View,
        guards: impl Fn() -> G,
        target: &WaypointTarget,
    ) -> Result<(), String> {
        if ext_authz::asks_somebody(guards()) {
            // Only those who have not let it pass before are asked.
            // It has no body: what follows its head is of another protocol.
            let asked = (&mut self.head, &self.asks, None);
            let asked = ext_authz::ask(client, view, (guards(), target), asked, &mut self.asked);
            Box::pin(asked).await.map_err(|refusal| refusal.reason)?;
        }
        let callers = Callers::among(guards(), client, (&self.head, &self.asks), &self.callers, self.at).await;
        self.callers = callers.map_err(|error| Refusal::token(&error).reason)?;
        let (mut head, mut asks) = (self.head.clone(), self.asks.clone());
        self.callers.tell(&mut head, &mut asks).map_err(|refusal| refusal.reason)?;
        let judged = judge(client, (guards(), target), (&head, &asks), &self.callers, |_| ());
        judged.map_err(|denied| denied.to_string())
    }
}
