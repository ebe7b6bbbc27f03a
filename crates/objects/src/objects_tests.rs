use std::time::{Duration, UNIX_EPOCH};

use serde::de::DeserializeSeed;

use super::*;

struct Seed(Kind);

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Decoded;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Decoded, D::Error> {
        decode(self.0, Mode::Strict, from)
    }
}

fn read(kind: Kind, yaml: &str) -> Result<Decoded, String> {
    serde_saphyr::with_deserializer_from_str(yaml, |from| decode(kind, Mode::Strict, from)).map_err(|e| e.to_string())
}

fn ok(kind: Kind, yaml: &str) -> Decoded {
    read(kind, yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

#[test]
fn kinds_are_found_by_api_version() {
    assert_eq!(Kind::from_api("apps/v1", "Deployment"), Some(Kind::Deployment));
    assert_eq!(Kind::from_api("security.istio.io/v1beta1", "AuthorizationPolicy"), Some(Kind::AuthorizationPolicy));
    assert_eq!(Kind::from_api("v1", "Deployment"), None);
    for kind in Kind::ALL {
        assert_eq!(Kind::from_api(kind.api_version(), kind.as_str()), Some(*kind));
    }
}

#[test]
fn a_pod_with_everything_we_use() {
    let decoded = ok(
        Kind::Pod,
        r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web, app.kubernetes.io/version: "1.0"}
  creationTimestamp: null
spec:
  nodeName: node-2
  hostNetwork: true
  serviceAccountName: web
  terminationGracePeriodSeconds: 5
  restartPolicy: Never
  containers:
  - name: main
    image: web:1
    command: [/bin/web, --port, "8080"]
    args: ["-v"]
    workingDir: /tmp
    env:
    - {name: PORT, value: "8080"}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    ports:
    - {name: http, containerPort: 8080}
    - {containerPort: 53, protocol: UDP}
    readinessProbe:
      httpGet: {port: http, path: /ready}
      periodSeconds: 1
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]
  conditions: [{type: Ready, status: "True"}]
"#,
    );
    assert_eq!(decoded.warnings, Vec::<String>::new());
    let Object::Pod(pod) = decoded.object else { panic!("not a pod") };
    assert_eq!(&*pod.metadata.namespace, "default");
    assert_eq!(pod.spec.account(), "web");
    assert_eq!(pod.spec.restart_policy, RestartPolicy::Never);
    assert_eq!(pod.spec.termination_grace_period_seconds, 5);
    let container = &pod.spec.containers[0];
    assert_eq!(container.command, ["/bin/web", "--port", "8080"]);
    assert_eq!(container.ports[0].container_port, PortNumber(8080));
    assert_eq!(container.ports[1].protocol, Protocol::Udp);
    let probe = container.readiness_probe.as_ref().expect("given");
    assert_eq!((probe.period_seconds, probe.timeout_seconds, probe.failure_threshold), (1, 1, 3));
    assert_eq!(probe.http_get.as_ref().expect("given").port, IntOrString::String("http".into()));
    assert!(pod.status.is_ready());
    assert_eq!(pod.status.addresses().len(), 2);
}

#[test]
fn fields_without_effect_are_told() {
    let decoded = ok(
        Kind::Deployment,
        "
metadata: {name: a}
spec:
  revisionHistoryLimit: 2
  strategy: {type: Recreate}
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      affinity: {}
      tolerations: null
      containers:
      - name: c
        livenessProbe: {exec: {command: [ls]}}
",
    );
    assert_eq!(decoded.warnings, ["spec.revisionHistoryLimit is not used by Leno and ignored"]);
    let said = decoded.not_in_force.iter().map(|field| format!("{} ({}): {}", field.path, field.field, field.effect));
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            "spec.strategy (strategy): an update is a rolling one, whatever it says",
            "spec.template.spec.affinity (affinity): it does NOT choose the node; write nodeName",
            "spec.template.spec.containers[0].livenessProbe (livenessProbe): a container that hangs is NOT started again",
        ]
    );
}

#[test]
fn what_acts_otherwise_than_it_reads_is_told_once() {
    let decoded = ok(
        Kind::PeerAuthentication,
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a}\n\
         spec: {selector: {matchLabels: {a: b}}, mtls: {mode: DISABLE}, portLevelMtls: {80: {mode: DISABLE}, 81: {mode: STRICT}}}\n",
    );
    assert_eq!(
        decoded.warnings,
        [
            "spec.mtls.mode DISABLE: acts as PERMISSIVE, so mTLS stays accepted",
            "spec.portLevelMtls.80.mode DISABLE: acts as PERMISSIVE, so mTLS stays accepted",
        ]
    );
    let decoded = ok(
        Kind::Service,
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: ExternalName, externalName: example.com}\n",
    );
    assert_eq!(decoded.warnings, ["spec.type ExternalName: not part of the mesh, so the service is left out"]);
}

/// Each refused with these words, and on this line (0: not checked).
#[test]
fn mistakes_are_refused_with_path_and_line() {
    let pod = |container: &str| format!("metadata: {{name: a}}\nspec:\n  containers:\n  - name: c\n{container}");
    let service = |spec: &str| format!("metadata: {{name: a}}\nspec:\n{spec}");
    let cases: Vec<(Kind, String, usize, &str)> = vec![
        (Kind::Pod, pod("    comand: [x]"), 5, "unknown field spec.containers[0].comand; did you mean command?"),
        (Kind::Pod, pod("    zzz: 1"), 5, "unknown field spec.containers[0].zzz; fields here are: name, image"),
        (Kind::Pod, pod("    command: [1]"), 5, "a string (put it in quotes)"),
        (Kind::Pod, pod("    ports:\n    - containerPort: 70000"), 6, "a port number from 1 to 65535"),
        (Kind::Pod, pod("    ports:\n    - {name: x}"), 0, "spec.containers[0].ports[0].containerPort is required"),
        (
            Kind::Pod,
            pod("    ports:\n    - {name: a, containerPort: 1}\n    - {name: a, containerPort: 2}"),
            6,
            "spec.containers[0].ports[1].name: port name \"a\" is already used by [0]",
        ),
        (Kind::Pod, pod("  - name: c"), 4, "spec.containers[1].name: container name \"c\" is already used by [0]"),
        (
            Kind::Pod,
            pod("    readinessProbe: {tcpSocket: {port: web}}"),
            0,
            "spec.containers[0].readinessProbe.tcpSocket.port: the container has no port named \"web\"; it has []",
        ),
        (Kind::Pod, pod("    readinessProbe: {periodSeconds: 1}"), 0, "needs httpGet, tcpSocket or exec"),
        (Kind::Pod, pod("  restartPolicy: Sometimes"), 5, "spec.restartPolicy: unknown value \"Sometimes\"; possible are:"),
        (Kind::Pod, pod("  restartPolicy: always"), 5, "did you mean Always?"),
        (Kind::Pod, "metadata: {name: A_b}\nspec: {containers: [{name: c}]}".into(), 1, "metadata.name: \"A_b\" must be"),
        (Kind::Pod, "metadata: {name: a}".into(), 0, "spec is required"),
        (Kind::Pod, "spec: {containers: [{name: c}]}".into(), 0, "metadata is required"),
        (Kind::Pod, "metadata: {}\nspec: {containers: [{name: c}]}".into(), 0, "metadata.name: is required"),
        (Kind::Pod, "metadata: {name: a}\nspec: {containers: []}".into(), 0, "needs at least one container"),
        (Kind::Namespace, "metadata: {name: a, namespace: b}".into(), 0, "a Namespace has no namespace"),
        (
            Kind::Deployment,
            "metadata: {name: a}\nspec:\n  selector: {matchLabels: {app: a}}\n  template:\n    metadata: {labels: {app: b}}\n    spec: {containers: [{name: c}]}"
                .into(),
            0,
            "spec.selector: does not match spec.template.metadata.labels",
        ),
        (Kind::Service, service("  ports: [{port: 0}]"), 3, "a port number from 1 to 65535"),
        (Kind::Service, service("  ports: [{port: 1}, {port: 2}]"), 3, "[0].name: is required when there are several"),
        (Kind::Service, service("  ports: [{port: 1, name: a}, {port: 1, name: b}]"), 3, "port 1 is listed twice"),
        (Kind::Service, service("  clusterIP: 10.0.0.300\n  ports: [{port: 1}]"), 0, "spec.clusterIP: \"10.0.0.300\""),
        (Kind::Service, service("  type: ClusterIPs\n  ports: [{port: 1}]"), 3, "did you mean ClusterIP?"),
        (Kind::Service, service("  selector: {app: true}\n  ports: [{port: 1}]"), 3, "a string (put it in quotes)"),
        (Kind::Service, service("  ports: [{port: 1, targetPort: Not_A_Name}]"), 3, "is no port name"),
        (
            Kind::AuthorizationPolicy,
            service("  rules:\n  - to:\n    - operation: {ports: [\"http\"]}"),
            5,
            "spec.rules[0].to[0].operation.ports[0]: \"http\" is not a port number",
        ),
        (
            Kind::AuthorizationPolicy,
            service("  rules:\n  - from:\n    - source: {ipBlocks: [\"10.0.0.0/33\"]}"),
            5,
            "spec.rules[0].from[0].source.ipBlocks[0]: \"10.0.0.0/33\" is neither",
        ),
        (Kind::AuthorizationPolicy, service("  rules: [{from: []}]"), 3, "spec.rules[0].from: is an empty list"),
        (Kind::AuthorizationPolicy, service("  rules: [{from: [{source: {}}]}]"), 3, "must restrict something"),
        (
            Kind::AuthorizationPolicy,
            service("  rules: [{from: [{source: {principals: [\"a*b*c\"]}}]}]"),
            3,
            "'*' may stand only at one end",
        ),
        (
            Kind::AuthorizationPolicy,
            service("  rules: [{when: [{key: source.ipp, values: [a]}]}]"),
            3,
            "unknown attribute \"source.ipp\"; did you mean source.ip?",
        ),
        (
            Kind::AuthorizationPolicy,
            service("  rules: [{when: [{key: 'request.header[x]', values: [a]}]}]"),
            3,
            "did you mean request.headers[NAME]?",
        ),
        (Kind::AuthorizationPolicy, service("  action: CUSTOM"), 0, "spec.provider: is required by action CUSTOM"),
        (
            Kind::PeerAuthentication,
            service("  portLevelMtls: {8080: {mode: STRICT}}"),
            0,
            "spec.portLevelMtls: needs a selector",
        ),
        (
            Kind::PeerAuthentication,
            service("  selector: {matchLabels: {a: b}}\n  portLevelMtls: {http: {mode: STRICT}}"),
            0,
            "spec.portLevelMtls.http: \"http\" is not a port number",
        ),
        (
            Kind::EndpointSlice,
            "metadata: {name: a}\naddressType: IPv6\nendpoints: [{addresses: [10.0.0.1]}]".into(),
            0,
            "endpoints[0].addresses[0]: \"10.0.0.1\" is no IPv6 address",
        ),
        (Kind::PeerAuthentication, service("  mtls: {mode: STRCT}"), 3, "did you mean STRICT?"),
    ];
    let mut wrong = String::new();
    for (kind, yaml, line, words) in cases {
        let error = read(kind, &yaml).expect_err(&yaml);
        if !error.contains(words) {
            wrong += &format!("{yaml}\n{error}\nlacks {words}\n\n");
        }
        if line > 0 && !error.contains(&format!("line {line} ")) {
            wrong += &format!("{yaml}\n{error}\nis not on line {line}\n\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn json_reads_the_same() {
    let json = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"b"},
        "spec":{"ports":[{"port":80,"targetPort":"http"}],"selector":{"app":"a"},"ipFamilies":["IPv4"]}}"#;
    let mut from = serde_json::Deserializer::from_str(json);
    let decoded = Seed(Kind::Service).deserialize(&mut from).expect("sound");
    assert_eq!(decoded.object.key().to_string(), "Service b/a");
    let unknown = r#"{"metadata":{"name":"a"},"spec":{"port":[]}}"#;
    let error = Seed(Kind::Service).deserialize(&mut serde_json::Deserializer::from_str(unknown)).expect_err("unknown");
    assert!(error.to_string().contains("unknown field spec.port; did you mean ports?"), "{error}");
}

#[test]
fn policies_keep_what_absence_means() {
    let policy = |spec: &str| match ok(Kind::AuthorizationPolicy, &format!("metadata: {{name: a}}\n{spec}")).object {
        Object::AuthorizationPolicy(policy) => policy.spec,
        other => panic!("{other:?}"),
    };
    assert_eq!(policy(""), AuthorizationPolicySpec::default());
    assert_eq!(policy("spec: {}").rules, []);
    assert_eq!(policy("spec: {rules: [{}]}").rules, [Rule::default()]);
    assert!(policy("spec: {selector: {}}").selector.is_some());
    assert!(policy("spec: {action: DENY, rules: [{}]}").selector.is_none());
}

#[test]
fn selectors() {
    let labels = Labels::from_iter([("app".into(), "web".into())]);
    let expression = |operator, values: &[&str]| LabelSelector {
        match_expressions: vec![LabelExpression {
            key: "app".into(),
            operator,
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        }],
        ..LabelSelector::default()
    };
    let empty = Labels::new();
    for (selector, with, without) in [
        (LabelSelector::default(), true, true),
        (expression(LabelOperator::In, &["web"]), true, false),
        (expression(LabelOperator::In, &["db"]), false, false),
        (expression(LabelOperator::NotIn, &["web"]), false, true),
        (expression(LabelOperator::Exists, &[]), true, false),
        (expression(LabelOperator::DoesNotExist, &[]), false, true),
    ] {
        assert_eq!((selector.matches(&labels), selector.matches(&empty)), (with, without), "{selector:?}");
    }
}

#[test]
fn times() {
    let at = |text: &str| text.parse::<Timestamp>().map(|t| t.0.duration_since(UNIX_EPOCH).expect("later"));
    assert_eq!(at("1970-01-01T00:00:00Z"), Ok(Duration::ZERO));
    assert_eq!(at("2000-03-01T00:00:00Z"), Ok(Duration::from_secs(951_868_800)));
    assert_eq!(at("2026-11-21T05:30:43Z"), Ok(Duration::from_secs(1_795_239_043)));
    assert_eq!(at("2026-11-21T07:30:43.25+02:00"), Ok(Duration::new(1_795_239_043, 250_000_000)));
    for bad in [
        "",
        "2026-11-21",
        "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-11-21T05:30:43",
        "now",
        "2026-11-21T05:30:43é",
    ] {
        assert!(at(bad).is_err(), "{bad}");
    }
}

/// What the strict mode refuses, by what the lenient one makes of it.
#[test]
fn an_api_server_may_know_more() {
    let lenient = |kind: Kind, yaml: &str| {
        read(kind, yaml).expect_err("a file's author is told");
        serde_saphyr::with_deserializer_from_str(yaml, |from| decode(kind, Mode::Lenient, from)).expect(yaml)
    };
    let decoded = lenient(
        Kind::Pod,
        "metadata: {name: a, newer: {x: [1]}}\nspec: {containers: [{name: c, newer: 1}], restartPolicy: Sometimes, affinity: {}}\n\
         status: {podIP: 10.0.0.1, newer: x}\n",
    );
    let Object::Pod(pod) = &decoded.object else { panic!("not a pod") };
    assert_eq!((&*pod.spec.containers[0].name, pod.status.addresses().len()), ("c", 1));
    assert_eq!(decoded.warnings.len(), 4, "the affinity is nobody's mistake: {:?}", decoded.warnings);
    let decoded =
        lenient(Kind::Service, "metadata: {name: a}\nspec: {ports: [{port: 1}], trafficDistribution: Newer}\n");
    assert_eq!(
        decoded.warnings,
        ["spec.trafficDistribution: \"Newer\" is not one of PreferClose, PreferSameZone, PreferSameNode"]
    );
    let slice = "metadata: {name: a}\naddressType: IPv6\nendpoints: [{addresses: [10.0.0.1]}]";
    assert_eq!(lenient(Kind::EndpointSlice, slice).warnings.len(), 1);
    for (kind, wrong) in [(Kind::Pod, "metadata: {name: a}\nspec: {containers: 1}"), (Kind::Pod, "metadata: {name: a}")]
    {
        let read = serde_saphyr::with_deserializer_from_str(wrong, |from| decode(kind, Mode::Lenient, from));
        assert!(read.is_err(), "of this nothing can be made: {wrong}");
    }
}

/// Without what was left out a policy would mean something else, so it says that something was.
#[test]
fn a_policy_says_what_was_not_understood_of_it() {
    let missing = |kind: Kind, spec: &str| {
        let yaml = format!("metadata: {{name: a, newer: 1}}\nspec: {spec}\nstatus: {{newer: 1}}\n");
        let read = serde_saphyr::with_deserializer_from_str(&yaml, |from| decode(kind, Mode::Lenient, from));
        match read.expect(&yaml).object {
            Object::AuthorizationPolicy(policy) => policy.not_understood,
            Object::PeerAuthentication(peer) => peer.not_understood,
            other => panic!("{other:?}"),
        }
    };
    let none: [&str; 0] = [];
    assert_eq!(missing(Kind::AuthorizationPolicy, "{rules: [{from: [{source: {principals: [a]}}]}]}"), none);
    let source = missing(Kind::AuthorizationPolicy, "{rules: [{from: [{source: {principals: [a], moons: [full]}}]}]}");
    assert!(source[0].starts_with("unknown field spec.rules[0].from[0].source.moons"), "{source:?}");
    assert_eq!(missing(Kind::AuthorizationPolicy, "{action: ASK}").len(), 1);
    assert_eq!(missing(Kind::AuthorizationPolicy, "{rules: [{when: [{key: newer, values: [a]}]}]}").len(), 1);
    assert_eq!(missing(Kind::PeerAuthentication, "{mtls: {mode: STRICT}}"), none);
    assert_eq!(missing(Kind::PeerAuthentication, "{mtls: {mode: STRICTER}}").len(), 1);
}
