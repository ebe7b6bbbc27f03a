//! What does the mesh decide? Authorisation, the route of a connection, the endpoint of a service, the answer to a DNS
//! question, and the reason for each: pure functions over [`Mesh`](leno_model::Mesh).
//!
//! Nothing here does I/O, reads a clock or owns a source of randomness. The caller passes random numbers in, so a
//! decision can be repeated. The proxy that enforces and the command that explains call the same functions and so print
//! the same words.

mod at_waypoint;
pub mod authority;
pub mod authorization;
pub mod balance;
pub mod cluster_dns;
pub mod connections;
pub mod dns;
mod endpoints;
pub mod explain;
mod explain_defaults;
mod explain_endpoint;
mod explain_endpoint_policy;
pub mod explain_groups;
pub mod explain_request;
mod explain_text;
mod explain_token;
pub mod explain_udp;
pub mod find;
pub mod http;
pub mod inbound;
pub mod routing;
mod server_name;
#[cfg(test)]
mod test_support;
mod understood;
mod waypoint;
mod waypoint_target;

pub use at_waypoint::{policies_at, policies_of_backend};
pub use authorization::{
    AllowReason, Checked, Connection, Decision, DenyReason, DryRun, DryRunEffect, Peer, Verdict, authorize,
    authorize_selected, examine,
};
pub use endpoints::{EndpointCounts, ready, ready_for_node};
pub use routing::{
    Identities, Reachable, Route, RouteError, RoutePlan, reachable, route, route_around, route_to_reachable,
};
pub use server_name::{DeniedUnread, ServerName};
pub use understood::NotUnderstood;
pub use waypoint::{WaypointProblem, addressed, any_address, beyond, serves};
pub use waypoint_target::{WaypointRefusal, WaypointTarget, waypoint_target};
