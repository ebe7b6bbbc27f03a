//! The L4 proxy of a node: inbound, outbound, DNS.
