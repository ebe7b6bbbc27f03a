//! The phases of a request, each by the field's word for it.
//!
//! ```text
//!  ext_authz    external authorisers
//!  jwt          tokens of callers; jwks_fetch: the keys of their issuers, read from an address
//!  fault        delays and failures made on purpose
//!  route        the HTTPRoute or GRPCRoute that it follows
//!  session      the endpoint at which a session stays
//!  mirror       copies, sent to other services
//!  retry        attempts at endpoints, until one has answered
//! ```

pub(crate) mod ext_authz;
pub(crate) mod fault;
pub(crate) mod jwks_fetch;
pub(crate) mod jwt;
pub(crate) mod mirror;
pub(crate) mod retry;
pub(crate) mod route;
pub(crate) mod session;
