//! What happens to the requests of services that no route is for: one for each VirtualService that counts.

use std::time::Duration;

use crate::http::Retry;
use crate::{PolicyName, ServiceName};

/// What happens to requests of services that follow no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDefaults {
    /// Key.
    pub id: PolicyName,
    /// The services that it counts for.
    pub services: Vec<ServiceName>,
    /// How long a request may take, with its response.
    pub timeout: Option<Duration>,
    /// How long one attempt may take.
    pub attempt_timeout: Option<Duration>,
    /// When it is sent again.
    pub retry: Option<Retry>,
    /// Failures that are made on purpose.
    pub fault: Option<Fault>,
}

/// Failures that are made on purpose. Both are drawn for each request, first the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// Of a million requests, how many wait, and how long.
    pub delay: Option<(u32, Duration)>,
    /// Of a million requests, how many are answered with a failure.
    pub abort: Option<(u32, Abort)>,
}

/// The failure with which a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Abort {
    /// An HTTP status.
    Status(u16),
    /// A gRPC status.
    Grpc(u16),
}
