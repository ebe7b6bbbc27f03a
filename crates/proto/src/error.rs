//! Why a message can't become part of a mesh.

/// A message that means nothing this version can act on. The receiver refuses the resource, and
/// whatever it would have described is closed
/// ([`address_stand_in`](crate::address_stand_in), [`policy_stand_in`](crate::policy_stand_in)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each field is named in its text")]
pub enum ConvertError {
    /// Not protobuf, or another message.
    #[error("not a valid {message}: {reason}; the control plane and this proxy disagree about the resource type")]
    Undecodable { message: &'static str, reason: String },
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing { field: &'static str },
    /// An enum value from the future.
    #[error("{field} has the unknown value {value}; the control plane is newer than this proxy, upgrade the proxy")]
    UnknownEnum { field: &'static str, value: i32 },
    /// A value that was valid once.
    #[error("{field} {value} is no longer supported; enroll the workload in ambient mode or remove it from the mesh")]
    Unsupported { field: &'static str, value: &'static str },
    /// An address that is neither IPv4 nor IPv6.
    #[error("{field} has {length} bytes; an IP address has 4 or 16")]
    AddressLength { field: &'static str, length: usize },
    /// A prefix longer than its address.
    #[error("{field} has the prefix length {length}, more than an address has bits")]
    PrefixLength { field: &'static str, length: u32 },
    /// A port out of range.
    #[error("{field} is {value}; a port is at most 65535")]
    Port { field: &'static str, value: u32 },
    /// A reference that is not `namespace/name`.
    #[error("{field} is {value:?}; expected <namespace>/<name>")]
    Reference { field: &'static str, value: String },
    /// A test of a string that says nothing to test.
    #[error(
        "{field} has a string match of no known kind; ignoring it could widen the policy, so the policy is refused"
    )]
    EmptyStringMatch { field: &'static str },
}

impl ConvertError {
    /// Whether the same message may be accepted later: never, it must change first.
    pub fn is_retryable(&self) -> bool {
        false
    }
}
