//! Where a request, or a copy of it, goes.

use crate::{Name, ServiceName};

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendTarget {
    /// A port of a service.
    Service {
        /// The service.
        service: ServiceName,
        /// Its port.
        port: u16,
    },
    /// The reference leads nowhere, or is not permitted; the text says why. Its share of requests is answered with status
    /// 500.
    Invalid(Name),
}
