use super::*;
use crate::files::parse;

fn said(text: &str) -> String {
    let found = parse("a.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    let passed_over = found.passed_over.iter().map(ToString::to_string);
    passed_over.chain(found.warnings).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_passed_over_says_what_does_not_happen() {
    let object = |version: &str, kind: &str, spec: &str| {
        said(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x, namespace: shop}}\nspec: {spec}\n"))
    };
    for (version, kind, spec, effect) in [
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "{podSelector: {}, policyTypes: [Ingress]}",
            "traffic is NOT restricted by it; write an AuthorizationPolicy to restrict it",
        ),
        (
            "cilium.io/v2",
            "CiliumNetworkPolicy",
            "{endpointSelector: {}}",
            "traffic is NOT restricted by it; write an AuthorizationPolicy to restrict it",
        ),
        (
            "policy.linkerd.io/v1alpha1",
            "AuthorizationPolicy",
            "{}",
            "traffic is NOT restricted by it; write an AuthorizationPolicy of security.istio.io/v1 to restrict it",
        ),
        ("gateway.networking.k8s.io/v1alpha2", "UDPRoute", "{}", "traffic is NOT routed by it"),
        (
            "gateway.networking.k8s.io/v1alpha2",
            "TCPRoute",
            "{}",
            "traffic is NOT routed by it; write apiVersion gateway.networking.k8s.io/v1",
        ),
        (
            "gateway.networking.k8s.io/v1",
            "Gateway",
            "{gatewayClassName: nginx, listeners: [{name: http, port: 80, protocol: HTTP}]}",
            "nothing from outside is led in by it",
        ),
        (
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            "{parentRefs: [{name: edge}, {group: '', kind: Servce, name: web}]}",
            "traffic is NOT routed by it: none of its parentRefs is a Service (group: \"\", kind: Service)",
        ),
        ("networking.istio.io/v1", "Gateway", "{servers: []}", "nothing from outside is led in by it"),
        ("networking.k8s.io/v1", "Ingress", "{}", "nothing from outside is led in by it"),
        ("apps/v1", "DaemonSet", "{}", "its pods are NOT started; write one Pod with a nodeName for each node"),
        ("batch/v1", "CronJob", "{}", "its jobs are NOT started; write a Job to run it once"),
        (
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "{}",
            "the number of pods does NOT follow the load; `leno scale` changes it",
        ),
    ] {
        assert_eq!(object(version, kind, spec), format!("a.yaml:1: {kind} shop/x is passed over: {effect}"));
    }
    assert_eq!(object("v1", "Quota", "{}"), "a.yaml:1: Quota shop/x (v1) is not understood and ignored");
    let cluster = said("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: x}\nrules: []\n");
    assert_eq!(cluster, "a.yaml:1: ClusterRole x (rbac.authorization.k8s.io/v1) is not understood and ignored");
}

#[test]
fn a_field_without_effect_says_what_does_not_happen() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  nodeSelector: {disk: ssd}\n  containers:\n  - \
                name: c\n    command: [x]\n    livenessProbe: {tcpSocket: {port: 1}}\n    imagePullPolicy: Always\n";
    assert_eq!(
        said(text),
        "a.yaml:1: Pod default/web: spec.nodeSelector has no effect: it does NOT choose the node; write nodeName\n\
         a.yaml:1: Pod default/web: spec.containers[0].livenessProbe has no effect: a container that hangs is NOT started \
         again\n\
         a.yaml:1: Pod default/web: spec.containers[0].imagePullPolicy is not used by Leno and ignored"
    );
}

#[test]
fn whom_it_would_concern_is_known() {
    let of = |kind: &str, spec: &str| {
        let body: Value =
            serde_json::from_str(&format!("{{\"metadata\": {{\"namespace\": \"shop\"}}, \"spec\": {spec}}}")).unwrap();
        concerns(kind, &body)
    };
    let Concerns::Selected(namespace, selector) = of(
        "NetworkPolicy",
        r#"{"podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}}"#,
    ) else {
        panic!("pods")
    };
    let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (Name::from(*k), Name::from(*v))).collect();
    assert_eq!(&*namespace, "shop");
    assert!(selector.matches(&labels(&[("app", "db")])) && !selector.matches(&labels(&[("app", "web")])));
    assert!(!selector.matches(&labels(&[("app", "db"), ("old", "1")])));
    let service = |namespace: &str, name: &str| (Name::from(namespace), Name::from(name));
    assert_eq!(
        of("ServiceEntry", r#"{"hosts": ["web", "db.back.svc.cluster.local"]}"#),
        Concerns::Services(vec![service("shop", "web"), service("back", "db")])
    );
    assert_eq!(
        of("UDPRoute", r#"{"parentRefs": [{"kind": "Service", "name": "web"}, {"name": "a-gateway"}]}"#),
        Concerns::Services(vec![service("shop", "web")])
    );
    assert_eq!(of("CiliumClusterwideNetworkPolicy", "{}"), Concerns::Nobody);
}
