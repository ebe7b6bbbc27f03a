//! Conversion between the model's types and their protobuf messages.

mod authorizer;
mod endpoint_policy;
mod fields;
mod policy;
mod request_defaults;
mod request_policy;
mod route;
mod service;
mod workload;

use leno_model as model;

use crate::ConvertError;
use crate::workload as wire;

pub use endpoint_policy::{endpoint_policy_from_proto, endpoint_policy_to_proto};
pub(crate) use fields::{DEFAULT_CLUSTER, DEFAULT_SERVICE_ACCOUNT, ip, or, range, service_name};
pub use policy::{authorization_from_proto, authorization_to_proto};
pub use request_defaults::{request_defaults_from_proto, request_defaults_to_proto};
pub use request_policy::{
    request_policy_from_proto, request_policy_of_resource, request_policy_stand_in, request_policy_to_proto,
};
pub use route::{route_from_proto, route_of_resource, route_resource_name, route_stand_in, route_to_proto};
pub use service::{service_from_proto, service_to_address, service_to_proto};
pub use workload::{workload_from_proto, workload_to_address, workload_to_proto};

/// What an `Address` resource holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// One pod or external endpoint.
    Workload(model::Workload),
    /// A service.
    Service(model::Service),
}

impl Resource {
    /// The resource name used in discovery: a workload's UID, a service's `namespace/hostname`.
    pub fn name(&self) -> String {
        match self {
            Self::Workload(workload) => workload.uid.to_string(),
            Self::Service(service) => service.id.to_string(),
        }
    }
}

/// Reads an `Address`.
///
/// # Errors
/// If it holds neither kind, or one that [`workload_from_proto`] or [`service_from_proto`] refuses.
pub fn address_from_proto(address: wire::Address) -> Result<Resource, ConvertError> {
    match address.r#type {
        Some(wire::address::Type::Workload(workload)) => workload_from_proto(workload).map(Resource::Workload),
        Some(wire::address::Type::Service(service)) => service_from_proto(service).map(Resource::Service),
        None => Err(ConvertError::Missing { field: "workload or service" }),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
