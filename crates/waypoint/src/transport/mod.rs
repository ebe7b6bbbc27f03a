//! Below HTTP: bytes as the HTTP library sees them, and protection from what it would accept.
//!
//! ```text
//!  wire               a tunnel or a TCP connection as the HTTP library sees it; timer: its time and tasks
//!  detect_protocol    which protocol a connection's first bytes speak
//!  h1_smuggling       requests in HTTP/1.1 that may be read in two ways
//!  h2_flood           floods of frames in HTTP/2; h2_budget: how fast frames without use are taken
//!  header_count       how many fields a header block has
//!  concurrent_streams how many requests an endpoint takes on one HTTP/2 connection
//!  write_coalescing   several frames in one write
//! ```

pub(crate) mod concurrent_streams;
pub(crate) mod detect_protocol;
pub(crate) mod h1_smuggling;
pub(crate) mod h2_budget;
pub(crate) mod h2_flood;
pub(crate) mod header_count;
pub(crate) mod timer;
pub(crate) mod wire;
pub(crate) mod write_coalescing;
