//! The session that a request belongs to, if its rule keeps sessions: at which endpoint it is, and what its client is told.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use leno_model::http::BackendTarget;
use leno_policy::http::{Chosen, Destination, Sessions, Token};

use crate::connection::target;
use crate::request::client::{Client, View};
use crate::upstream::{self, Plan};

/// Where a session is.
pub(crate) struct Held {
    /// The backend's place in its rule.
    pub(crate) backend: usize,
    /// The endpoint's number.
    pub(crate) endpoint: u64,
    token: Token,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Finds the endpoint of a request's session: one that a backend of the rule has, and that is well.
pub(crate) fn find(
    client: &Client,
    view: &View,
    headers: &HeaderMap,
    chosen: &Chosen,
    sessions: &Sessions,
) -> Option<Held> {
    sessions.tokens(headers, now()).find_map(|token| {
        chosen.backends().enumerate().find_map(|(backend, (_, to))| {
            let BackendTarget::Service { service, port } = to else { return None };
            let scope = sessions.scope(service, *port);
            let to = Destination { service: service.clone(), port: *port };
            let target = target::backend(&view.mesh, &view.target, &to)?;
            let plan = upstream::plan(&client.gate, client.lane(), &view.mesh, &view.own, &target).ok()?;
            let Plan::Balanced(cluster) = plan else { return None };
            let endpoint = cluster.find(&client.gate.silent, |endpoint| scope.place(endpoint) == token.place)?;
            Some(Held { backend, endpoint, token })
        })
    })
}

/// Tells a client the token of its session, which is at the endpoint that has answered.
pub(crate) fn tell(held: Option<&Held>, chosen: &Chosen, at: (&Destination, u64), headers: &mut HeaderMap) {
    let Some(sessions) = chosen.sessions() else { return };
    let (to, endpoint) = at;
    let place = sessions.scope(&to.service, to.port).place(endpoint);
    let before = held.map(|held| held.token).filter(|token| token.place == place);
    let token = before.unwrap_or_else(|| Token { place, began: now() });
    sessions.tell(token, before.is_none(), chosen.match_index(), headers);
}
