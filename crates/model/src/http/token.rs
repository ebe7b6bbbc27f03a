//! Whose tokens (JSON Web Tokens) requests may carry: the rules of a RequestAuthentication.

use std::time::Duration;

use crate::Name;

/// Whose tokens are accepted, where they stand in a request, and what a program is told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRule {
    /// The issuer, exactly.
    pub issuer: Name,
    /// Audiences of which a token must name one; an empty list stands for any.
    pub audiences: Vec<Name>,
    /// The issuer's keys.
    pub keys: TokenKeys,
    /// Headers that carry a token, each with what stands before it.
    pub headers: Vec<(Name, Name)>,
    /// Query parameters that carry a token.
    pub params: Vec<Name>,
    /// Cookies that carry a token.
    pub cookies: Vec<Name>,
    /// Whether the program gets the token.
    pub forward: bool,
    /// Header that tells the program the claims.
    pub payload_header: Option<Name>,
    /// Headers that tell the program single claims, each with the names that lead to the claim.
    pub claim_headers: Vec<(Name, Vec<Name>)>,
}

/// The keys of an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TokenKeys {
    /// A JSON Web Key Set.
    Inline(Name),
    /// The address of one.
    At {
        /// An `http` or `https` address.
        uri: Name,
        /// How long reading it may take.
        timeout: Duration,
    },
    /// None are named, so no token is accepted.
    None,
}
