//! Netlink by hand: one encoder and one blocking socket serve both the routing and the nf_tables subsystems, in a fraction of
//! the code that two asynchronous client libraries would bring.

pub(crate) mod message;
pub(crate) mod socket;

pub mod links;
pub(crate) mod routes;
