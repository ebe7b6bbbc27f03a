//! A token in a request that somebody asks about: what it says is read, and whether it is so is for the waypoint to find out.

use leno_model::http::TokenKeys;

use crate::http::token::{Token, TokenError};
use crate::http::{Caller, Guard, Keys, Request};

/// Takes every signature for good that somebody could verify.
struct Unverified;

impl Keys for Unverified {
    fn made(&self, keys: &TokenKeys, _: &Token<'_>) -> Result<bool, TokenError> {
        match keys {
            TokenKeys::None => Err(TokenError::NoKeys("its rule names none".to_owned())),
            TokenKeys::Inline(_) | TokenKeys::At { .. } => Ok(true),
        }
    }
}

/// Whose token the request carries, if its signature is good and its time has come.
///
/// # Errors
/// If it carries one that is not accepted whatever its signature and the time are.
pub(crate) fn taken(guard: &Guard, request: &Request<'_>) -> Result<Caller, TokenError> {
    match guard.authenticate(request, &Unverified, 0) {
        Err(TokenError::NotYet(begin)) => guard.authenticate(request, &Unverified, begin),
        other => other,
    }
}

/// The issuer that the token names; `None` if there is no token.
pub(crate) fn issuer(caller: &Caller) -> Option<String> {
    let name = caller.claims()?.texts(&["iss"]).unwrap_or_default();
    Some(name.concat())
}

/// The verdict about a request with a token of `issuer`. `verdict` is that about an accepted one.
pub(crate) fn depends(issuer: &str, verdict: &str) -> String {
    format!(
        "depends on the token, which explain does not verify: with an accepted token of issuer {issuer} {verdict}; else its \
         client gets status 401"
    )
}
