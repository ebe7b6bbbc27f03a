//! May a request pass? What external authorisers are asked about it, and what becomes of their answers.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderName};
use http::request::Parts;
use leno_model::PolicyName;
use leno_model::http::{Authorizer, AuthorizerAnswer};
use leno_policy::http::authorizer::{Allowed, Denied};
use leno_policy::http::{Guard, Subject};
use leno_policy::{Connection, WaypointTarget};
use leno_proto::check::{CheckedRequest, check_request};

use super::check_call::check;
use super::client::{Client, View};
use super::consent::Consent;
use super::head::Asks;
use super::pending::protocol;
use super::refusal::{Flag, Refusal};
use super::routing::seen;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether there may be somebody to ask.
pub(super) fn asks_somebody<'g>(mut guards: impl Iterator<Item = &'g Arc<Guard>>) -> bool {
    guards.any(|guard| !guard.asks_nobody())
}

/// Asks the authorisers that policies name for a request in its one form, except those that have let it pass before, and changes
/// its headers as they say. To be called before tokens are looked at: an authoriser may put one in.
///
/// # Errors
/// If one does not let it pass, or gives no answer and its provider is not `failOpen`.
pub(super) async fn ask<'g>(
    client: &Client,
    view: &View,
    (guards, target): (impl Iterator<Item = &'g Arc<Guard>>, &WaypointTarget),
    (head, asks): (&mut Parts, &Asks),
    asked: &mut Consent,
) -> Result<(), Refusal> {
    let connection = Connection {
        source: Some(client.identity()),
        source_ip: client.address().ip(),
        destination: target.seen_by_policies(),
    };
    let mut wanted: Vec<(PolicyName, Arc<Authorizer>)> = Vec::new();
    {
        let request = seen(client.identity(), head, asks);
        let subject = Subject::new(connection, Some(&request));
        for (policy, authorizer) in guards.flat_map(|guard| guard.to_ask(&subject)) {
            let known = wanted.iter().map(|(_, known)| known).chain(&asked.by);
            if !known.into_iter().any(|known| known == authorizer) {
                wanted.push((policy.clone(), authorizer.clone()));
            }
        }
    }
    for (policy, authorizer) in wanted {
        let question = question(client, target, head, asks);
        let answered = check(client, view, &authorizer, &question).await;
        let answered = answered.and_then(|answer| match answer {
            AuthorizerAnswer::Allowed(allowed) => {
                Allowed::new(&allowed).map(Ok).map_err(|unusable| unusable.to_string())
            }
            AuthorizerAnswer::Denied(denied) => Ok(Err(denied)),
        });
        let provider = &authorizer.provider;
        match answered {
            Ok(Ok(allowed)) => {
                allowed.change_request(&mut head.headers);
                if allowed.changes_response() {
                    asked.response.push(allowed);
                }
            }
            Ok(Err(denied)) => {
                let message: String = denied.message.chars().take(256).collect();
                let reason = format!(
                    "denied by the authoriser {provider:?} of policy {policy} (code {}, {message:?})",
                    denied.code
                );
                let denied = Denied::new(&denied);
                let status = StatusCode::from_u16(denied.status).unwrap_or(StatusCode::FORBIDDEN);
                return Err(Refusal { by: Some(Box::new(denied)), ..Refusal::new(status, Flag::External, reason) });
            }
            Err(why) if authorizer.fail_open => {
                let note = format!("policy {policy}: the authoriser {provider:?} gave no answer (failOpen): {why}");
                if !asked.notes.contains(&note) {
                    asked.notes.push(note);
                }
            }
            Err(why) => {
                let status = StatusCode::from_u16(authorizer.status_on_error).unwrap_or(StatusCode::FORBIDDEN);
                let reason = format!("the authoriser {provider:?} of policy {policy} gave no answer: {why}");
                let told = Some("the request could not be authorized");
                return Err(Refusal { told, ..Refusal::new(status, Flag::External, reason) });
            }
        }
        asked.by.push(authorizer);
    }
    Ok(())
}

fn question(client: &Client, target: &WaypointTarget, head: &Parts, asks: &Asks) -> Vec<u8> {
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    check_request(&CheckedRequest {
        source: (client.identity().to_string(), client.address()),
        destination: target.seen_by_policies(),
        time: SystemTime::now(),
        id: text(REQUEST_ID).unwrap_or_default(),
        method: head.method.as_str(),
        path: asks.path.as_str(),
        host: asks.authority.as_str(),
        protocol: protocol(head.version),
        size: text(CONTENT_LENGTH).and_then(|text| text.parse().ok()),
        headers: head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect(),
    })
}
