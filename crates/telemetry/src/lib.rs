//! What is told? Metrics, access log, admin endpoint.
