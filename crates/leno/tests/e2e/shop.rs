//! The namespace that tests of waypoints use: one waypoint serves it all, and one pod without a server runs commands.

/// Literals, for `concat!`.
macro_rules! namespace {
    () => {
        "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: gate}}
"
    };
}

macro_rules! gate {
    () => {
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
"
    };
}

/// The namespace, which wants to be served by [`GATE`].
pub(crate) const NAMESPACE: &str = namespace!();

/// Its waypoint.
pub(crate) const GATE: &str = gate!();

/// Both, and the pod `client`.
pub(crate) const SHOP: &str = concat!(
    namespace!(),
    "---",
    gate!(),
    "---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1, containers: [{name: c, command: [sleep, infinity]}]}
"
);
