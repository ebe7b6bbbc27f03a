//! Why a message is refused.

/// A message that this version can't act on. The receiver refuses the resource, and closes whatever it would have
/// described ([`address_stand_in`](crate::address_stand_in), [`policy_stand_in`](crate::policy_stand_in)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each field is named in its text")]
pub enum ConvertError {
    /// Not protobuf, or a different message.
    #[error("not a valid {message}: {reason}; the control plane and this proxy disagree about the resource type")]
    Undecodable { message: &'static str, reason: String },
    /// A required field is missing.
    #[error("{field} is missing")]
    Missing { field: &'static str },
    /// An enum value that this version does not know.
    #[error("{field} has the unknown value {value}; the control plane is newer than this proxy, upgrade the proxy")]
    UnknownEnum { field: &'static str, value: i32 },
    /// A value that is no longer supported.
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
    /// A string match that has nothing to match.
    #[error(
        "{field} has a string match of no known kind; ignoring it could widen the policy, so the policy is refused"
    )]
    EmptyStringMatch { field: &'static str },
}

impl ConvertError {
    /// Whether the same message may be accepted later. Never: it must change first.
    pub fn is_retryable(&self) -> bool {
        false
    }
}
