//! What outlives a connection: the waypoint's own state, and what it keeps of the mesh.
//!
//! ```text
//!  shared             all of it, as every connection holds it; worker: what one thread holds
//!  own_workload       the workload that this process is
//!  policies           compiled policies; route_tables: compiled routes
//!  jwks               keys of tokens' issuers
//!  rate_limits        how many requests follow a route with a limit
//!  ext_authz_slots    how many requests wait for each external authoriser
//!  request_metrics    series of metrics, found again
//!  tunnel_limit       how many tunnels a peer may have
//!  open_list          connections and requests that are open
//! ```

pub(crate) mod ext_authz_slots;
pub(crate) mod jwks;
pub(crate) mod open_list;
pub(crate) mod own_workload;
pub(crate) mod policies;
pub(crate) mod rate_limits;
pub(crate) mod request_metrics;
pub(crate) mod route_tables;
pub(crate) mod shared;
pub(crate) mod tunnel_limit;
pub(crate) mod worker;
