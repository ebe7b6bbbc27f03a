//! May a request pass? What external authorisers are asked about it, and what becomes of their answers.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderName};
use http::request::Parts;
use leno_model::PolicyName;
use leno_model::http::{Authorizer, AuthorizerAnswer, CheckedBody};
use leno_policy::http::authorizer::{Allowed, Denied};
use leno_policy::http::{Guard, Subject};
use leno_policy::{Connection, WaypointTarget};
use leno_proto::check::{CheckedRequest, ToldBody, check_request};
use leno_tunnel::timers;

use super::call::{NoAnswer, Question, check, depth};
use super::over_http;
use crate::body::client::{ClientBody, Unheld};
use crate::phases::route::seen;
use crate::request::client::{Client, View};
use crate::request::consent::Consent;
use crate::request::head::Asks;
use crate::request::open_requests::protocol;
use crate::request::refusal::{Flag, Refusal};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether there may be somebody to ask.
pub(crate) fn asks_somebody<'g>(mut guards: impl Iterator<Item = &'g Arc<Guard>>) -> bool {
    guards.any(|guard| !guard.asks_nobody())
}

/// Asks the authorisers that policies name for a request in its one form, except those that have let it pass before, and changes
/// its headers as they say. Of its body, as much is held as they are to see. To be called before tokens are looked at: an authoriser may put one in.
///
/// # Errors
/// If one does not let it pass, or gives no answer and its provider is not `failOpen`.
pub(crate) async fn ask<'g>(
    client: &Client,
    view: &View,
    (guards, target): (impl Iterator<Item = &'g Arc<Guard>>, &WaypointTarget),
    (head, asks, mut body): (&mut Parts, &Asks, Option<&mut ClientBody>),
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
    let depth = depth(&head.headers);
    for (policy, authorizer) in wanted {
        let Some(depth) = depth else { return Err(circle(&policy, &authorizer)) };
        let told = match (authorizer.body, body.as_deref_mut()) {
            // What follows the head of an upgrade is no body.
            (Some(told), Some(body)) if !asks.upgrade && !body.is_end_stream() => {
                Box::pin(hold(client, body, told, &authorizer)).await?;
                Some(begun(body, told))
            }
            _ => None,
        };
        let question = match &authorizer.http {
            None => Ok(Question::Grpc(question(client, target, (head, asks), told))),
            Some(how) => over_http::question(how, (head, asks), told).map(|it| Question::Http(Box::new(it))),
        };
        let answered = match question {
            Ok(question) => check(client, view, &authorizer, (question, depth)).await,
            Err(why) => Err(why.into()),
        };
        let answered = match answered {
            Ok(AuthorizerAnswer::Allowed(allowed)) => {
                Allowed::new(&allowed).map(Ok).map_err(|unusable| unusable.to_string())
            }
            Ok(AuthorizerAnswer::Denied(denied)) => Ok(Err(denied)),
            Err(NoAnswer::Because(why)) => Err(why),
            Err(NoAnswer::Circle) => return Err(circle(&policy, &authorizer)),
        };
        let provider = &authorizer.provider;
        match answered {
            Ok(Ok(allowed)) => {
                allowed.change_request(&mut head.headers);
                if allowed.changes_response() {
                    asked.response.push(allowed);
                }
            }
            Ok(Err(denied)) => {
                let says = match (&authorizer.http, denied.message.chars().take(256).collect::<String>()) {
                    (Some(_), _) => format!("status {}", denied.code),
                    (None, message) => format!("code {}, {message:?}", denied.code),
                };
                let reason = format!("denied by the authoriser {provider:?} of policy {policy} ({says})");
                let denied = Denied::new(&denied);
                let status = StatusCode::from_u16(denied.status).unwrap_or(StatusCode::FORBIDDEN);
                return Err(Refusal { by: Some(Box::new(denied)), ..Refusal::new(status, Flag::External, reason) });
            }
            Err(why) if authorizer.fail_open => {
                let passes = format!("policy {policy}: the authoriser {provider:?} gave no answer: {why}");
                if !asked.unanswered.contains(&passes) {
                    asked.unanswered.push(passes);
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

/// A refusal that no provider has a say in.
fn circle(policy: &PolicyName, authorizer: &Authorizer) -> Refusal {
    let reason = format!(
        "policy {policy} has the authoriser {:?} asked about a question, and that question, or one about it, is asked about \
         again: authorisers ask in a circle. Leave the questions' path out of the policy's rules",
        authorizer.provider
    );
    Refusal::new(StatusCode::LOOP_DETECTED, Flag::External, reason)
}

/// Reads as much of a body as an authoriser is to see.
///
/// # Errors
/// If there is more than it may be told, or not all of that comes. `failOpen` changes nothing about it, as Istio has it.
async fn hold(
    client: &Client,
    body: &mut ClientBody,
    told: CheckedBody,
    authorizer: &Authorizer,
) -> Result<(), Refusal> {
    let (most, provider) = (told.most as usize, &authorizer.provider);
    let limit = client.gate.config.held_body_timeout;
    let refuse = |status, reason: String| Err(Refusal::new(status, Flag::External, reason));
    let too_long = || {
        let reason = format!(
            "the body is longer than the {most} bytes of which the authoriser {provider:?} is told (maxRequestBytes)"
        );
        refuse(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    // The client of a body that is not asked for need not send it (100-continue).
    if !told.partial && body.size_hint().exact().is_some_and(|length| length > u64::from(told.most)) {
        return too_long();
    }
    match timers::timeout(limit, body.hold(most, told.partial, &client.gate.bodies)).await {
        Ok(Ok(())) if !told.partial && body.held().len() > most => too_long(),
        Ok(Ok(())) => Ok(()),
        Ok(Err(Unheld::Broken(error))) => Err(Refusal::malformed(format!("the request's body broke off: {error}"))),
        Ok(Err(Unheld::NoRoom)) => {
            let reason = "there is no room for the body, which an authoriser is to see: bodies that wait for that have an \
                          eighth of LENO_MAX_MEMORY";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, Flag::Overload, reason))
        }
        Err(_) => {
            let reason = format!(
                "of the body, what the authoriser {provider:?} is to see has not come within {limit:?} \
                 (LENO_HELD_BODY_TIMEOUT)"
            );
            refuse(StatusCode::REQUEST_TIMEOUT, reason)
        }
    }
}

/// What an authoriser is told of a body that is held.
fn begun(body: &ClientBody, told: CheckedBody) -> ToldBody<'_> {
    let held = body.held();
    let bytes = &held[..held.len().min(told.most as usize)];
    ToldBody { bytes, is_partial: bytes.len() < held.len() || !body.has_come(), raw: told.raw }
}

fn question(
    client: &Client,
    target: &WaypointTarget,
    (head, asks): (&Parts, &Asks),
    body: Option<ToldBody<'_>>,
) -> Vec<u8> {
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let whole = || i64::try_from(body.filter(|body| !body.is_partial)?.bytes.len()).ok();
    check_request(&CheckedRequest {
        source: (client.identity().to_string(), client.address()),
        destination: target.seen_by_policies(),
        time: SystemTime::now(),
        id: text(REQUEST_ID).unwrap_or_default(),
        method: head.method.as_str(),
        path: asks.path.as_str(),
        host: asks.authority.as_str(),
        protocol: protocol(head.version),
        size: text(CONTENT_LENGTH).and_then(|text| text.parse().ok()).or_else(whole),
        headers: head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect(),
        body,
    })
}
