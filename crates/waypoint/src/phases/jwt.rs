//! Whose token does a request carry, and what is its program told of that?

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::uri::PathAndQuery;
use leno_model::Name;
use leno_policy::http::token::TokenError;
use leno_policy::http::{Caller, Guard, Request};

use crate::phases::jwks_fetch;
use crate::phases::route::seen;
use crate::request::client::{Client, View};
use crate::request::head::Asks;
use crate::request::refusal::Refusal;
use crate::state::jwks::Lookup;

/// Seconds since the Unix epoch. A clock that is wrong about that accepts no token that ends.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs())
}

/// Whose token a request carries, for each guard that has rules for tokens.
#[derive(Clone, Default)]
pub(crate) struct Callers {
    by_guard: Vec<(Arc<Guard>, Caller)>,
    nobody: Caller,
}

impl Callers {
    /// Looks for the tokens of a request as it came. Where the rules are the same as for `known`, so is the answer.
    ///
    /// # Errors
    /// If it carries one that is not accepted at `now`.
    pub(crate) async fn of(
        client: &Arc<Client>,
        view: &View,
        (head, asks): (&Parts, &Asks),
        known: &Self,
        now: u64,
    ) -> Result<Self, TokenError> {
        Self::among(view.guards(), client, (head, asks), known, now).await
    }

    /// As [`Self::of`], for these guards.
    pub(crate) async fn among<'g>(
        guards: impl IntoIterator<Item = &'g Arc<Guard>>,
        client: &Arc<Client>,
        (head, asks): (&Parts, &Asks),
        known: &Self,
        now: u64,
    ) -> Result<Self, TokenError> {
        let mut callers = Self::default();
        for guard in guards.into_iter().filter(|guard| !guard.takes_no_tokens()) {
            let known = known.by_guard.iter().find(|(old, _)| old.takes_tokens_as(guard));
            let caller = match known {
                Some((_, caller)) => caller.clone(),
                None => {
                    let request = seen(client.identity(), head, asks);
                    Box::pin(authenticate(client, guard, &request, now)).await?
                }
            };
            callers.by_guard.push((guard.clone(), caller));
        }
        Ok(callers)
    }

    /// Whose token a guard has accepted.
    pub(crate) fn by(&self, guard: &Arc<Guard>) -> &Caller {
        let found = self.by_guard.iter().find(|(known, _)| Arc::ptr_eq(known, guard));
        found.map_or(&self.nobody, |(_, caller)| caller)
    }

    /// Changes a request as the rules for tokens say.
    pub(crate) fn tell(&self, head: &mut Parts, asks: &mut Asks) -> Result<(), Refusal> {
        for (guard, caller) in &self.by_guard {
            let Some(query) = guard.tell(caller, asks.path.query(), &mut head.headers).query else { continue };
            let text = match &*query {
                "" => asks.path.path().to_owned(),
                query => format!("{}?{query}", asks.path.path()),
            };
            asks.path = PathAndQuery::try_from(text).map_err(|error| Refusal::malformed(error.to_string()))?;
        }
        Ok(())
    }
}

/// Whose token a request carries. Waits for keys that have to be read for this, as long as their rule allows.
async fn authenticate(
    client: &Arc<Client>,
    guard: &Guard,
    request: &Request<'_>,
    now: u64,
) -> Result<Caller, TokenError> {
    let lookup = Lookup::new(&client.gate.keys);
    let first = guard.authenticate(request, &lookup, now);
    let fetch = |uri: Name| {
        let client = client.clone();
        async move { jwks_fetch::keys(&client, &uri).await }
    };
    let may_change = lookup.improve(first.is_ok(), fetch).await;
    match first {
        Err(_) if may_change => guard.authenticate(request, &Lookup::new(&client.gate.keys), now),
        first => first,
    }
}
