//! The namespace that most tests of waypoints use: one waypoint serves it all, and one pod without a server runs commands.

/// The namespace, its waypoint `gate` and the pod `client`, without a service.
pub(crate) const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: gate}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1, containers: [{name: c, command: [sleep, infinity]}]}
";
