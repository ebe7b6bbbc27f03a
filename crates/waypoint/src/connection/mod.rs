//! A connection in a tunnel, whatever it speaks.
//!
//! ```text
//!  target       whom it is for, and from whom it comes
//!  authorise    the policies that are asked about it, and about its requests
//!  record       its access log line and metrics
//! ```

pub(crate) mod authorise;
pub(crate) mod record;
pub(crate) mod target;
