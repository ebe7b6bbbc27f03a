//! TCP and TLS passthrough: connections whose bytes nobody reads.
//!
//! ```text
//!  relay     a connection, from its target to its end
//!  routes    TCPRoutes and TLSRoutes: where it goes
//! ```

pub(crate) mod relay;
pub(crate) mod routes;
