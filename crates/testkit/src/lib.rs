//! Fakes, clocks and builders for the other crates' tests.

#[cfg(feature = "any-server")]
pub mod any_server;
#[cfg(feature = "api-server")]
pub mod api_server;
pub mod archive;
pub mod busy;
pub mod certs;

#[cfg(feature = "mesh")]
pub mod control_plane;
#[cfg(feature = "mesh")]
pub mod endpoint;
#[cfg(feature = "mesh")]
pub mod flood;
#[cfg(feature = "mesh")]
pub mod frames;
#[cfg(feature = "mesh")]
pub mod hbone;
#[cfg(feature = "mesh")]
pub mod impaired_link;
pub mod latencies;
pub mod lines;
#[cfg(feature = "mesh")]
pub mod network;
pub mod own_memory;
pub mod page_text;
pub mod skips;
#[cfg(feature = "mesh")]
pub mod steps;
#[cfg(feature = "mesh")]
pub mod syscalls;
#[cfg(feature = "tokens")]
pub mod tokens;
