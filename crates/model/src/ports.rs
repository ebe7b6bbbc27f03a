//! The ports of the mesh's own components. They are Istio's.

/// In each pod: outbound TCP, redirected.
pub const OUTBOUND: u16 = 15001;
/// In each pod: inbound TCP that is not HBONE, redirected.
pub const INBOUND: u16 = 15006;
/// In each pod: HBONE. Nothing is redirected there; peers connect to it.
pub const HBONE: u16 = 15008;
/// In each pod, on loopback: DNS, redirected.
pub const DNS: u16 = 15053;
/// A proxy's admin endpoint, on loopback.
pub const ADMIN: u16 = 15000;
/// A proxy's metrics.
pub const METRICS: u16 = 15020;
/// A proxy's readiness.
pub const READINESS: u16 = 15021;
/// A control plane's discovery and certificates.
pub const CONTROL: u16 = 15012;

/// The ports in a pod that no peer and no pod may reach through the proxy, because the proxy itself listens there.
/// Through `DNS`, a peer could otherwise ask questions in the pod's name.
pub const RESERVED: [u16; 4] = [OUTBOUND, INBOUND, HBONE, DNS];
