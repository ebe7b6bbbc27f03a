//! What happens to a request, from its head to the end of its response.
//!
//! ```text
//!  forward   normalise, ext_authz, JWT, authorise, delay, route, authorise at the backend, send
//!  upgrade   a connection that has ceased to be HTTP (a WebSocket), and is judged again when policies change
//! ```

pub(crate) mod forward;
pub(crate) mod upgrade;
