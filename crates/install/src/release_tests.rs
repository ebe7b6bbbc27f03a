use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use leno_kubernetes::rbac;
use leno_testkit::skips::skip;

use super::*;
use crate::Profile;

fn release(profile: Profile, sets: &[&str]) -> Release {
    with_file(profile, "", sets)
}

fn with_file(profile: Profile, file: &str, sets: &[&str]) -> Release {
    let mut values = Values::of(profile).expect("a chart");
    values.file(file, "a file").expect("values");
    for set in sets {
        values.set(set).expect("a value");
    }
    Release { namespace: NAMESPACE.to_owned(), values, crds: true }
}

fn rendered(profile: Profile, sets: &[&str]) -> BTreeMap<String, Value> {
    objects(&release(profile, sets))
}

fn objects(release: &Release) -> BTreeMap<String, Value> {
    let manifests = release.render().expect("objects");
    let count = manifests.len();
    let objects: BTreeMap<_, _> =
        manifests.into_iter().map(|manifest| (key(&manifest.object), manifest.object)).collect();
    assert_eq!(objects.len(), count, "an object is there twice");
    objects
}

fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"])
    )
}

/// Authorisers, of which one has what YAML could take for something else.
const PROVIDERS: &str = r#"
meshConfig:
  extensionProviders:
  - name: opa
    envoyExtAuthzGrpc: {service: opa.auth.svc.cluster.local, port: 9191, timeout: 0.5s, failOpen: true, statusOnError: "503"}
  - name: "no"
    zipkin: {port: 9411, text: "a: \"b\" # c\n- d", empty: {}, list: [1, [], true, null]}
"#;

/// Values, of which some are a file, that take every way through the templates between them.
const VARIANTS: [(Profile, &str, &[&str]); 7] = [
    (Profile::Minimal, "", &[]),
    (Profile::Default, "", &[]),
    (Profile::Default, PROVIDERS, &["waypoint.enabled=false"]),
    (Profile::Default, "", &["namespace.create=true", "prometheus.annotations=false"]),
    (Profile::Default, "", &["agent.enabled=false", "node.enabled=false"]),
    (Profile::Ha, "", &[]),
    (
        Profile::Ha,
        PROVIDERS,
        &[
            "image.repository=registry.example:5000/mesh/leno",
            "image.tag=1.2.3",
            "image.pullSecrets={one,two}",
            "control.env.RUST_LOG=a \"b\" c",
            "agent.env.EMPTY=",
            "node.env.N=1000000",
            "node.podLabels.app=ztunnel",
            "control.podAnnotations.example\\.com/x=yes",
            "node.controlPlane=https://istiod.istio-system.svc:15012",
            "node.maxSurge=10%",
            "grafana.dashboard=true",
        ],
    ),
];

#[test]
fn all_ways_through_the_templates_give_objects() {
    for (profile, file, sets) in VARIANTS {
        for (key, object) in objects(&with_file(profile, file, sets)) {
            assert_eq!(
                object["metadata"]["labels"]["app.kubernetes.io/part-of"], "leno",
                "{key}: it can be found again"
            );
            assert!(object["apiVersion"].is_string(), "{key}");
        }
    }
}

/// `helm template` and this program make the same of the chart.
#[test]
fn helm_renders_the_same() {
    let Some(helm) = helm() else {
        skip("helm_renders_the_same", "needs LENO_HELM=PATH of helm, or helm on the PATH");
        return;
    };
    let charts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../charts");
    let given = tempfile::NamedTempFile::new().expect("a file");
    for (profile, file, sets) in VARIANTS {
        std::fs::write(given.path(), file).expect("a file");
        let mut theirs = BTreeMap::new();
        for chart in ["leno", "leno-crds"] {
            let mut command = Command::new(&helm);
            command
                .args(["template", "leno", "--namespace", NAMESPACE, "--kube-version", "1.32.0"])
                .arg(charts.join(chart));
            if chart == "leno" {
                let file = charts.join(format!("leno/values-{profile}.yaml"));
                // `default` is the chart's own values.
                if file.exists() {
                    command.arg("-f").arg(file);
                }
                command.arg("-f").arg(given.path());
                for set in sets {
                    let (name, value) = set.split_once('=').expect("an assignment");
                    let list = value.starts_with('{');
                    let typed = list || ["true", "false"].contains(&value);
                    command.args([if typed { "--set" } else { "--set-string" }, &format!("{name}={value}")]);
                }
            }
            let output = command.output().expect("helm runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(&text).expect("helm writes YAML");
            theirs.extend(documents.into_iter().flatten().map(|object| (key(&object), with_files_read(object))));
        }
        let ours = objects(&with_file(profile, file, sets));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{profile} {sets:?}");
        for (key, object) in ours {
            assert_eq!(with_files_read(object), theirs[&key], "{profile} {sets:?}: {key}");
        }
    }
}

/// An object with the YAML that its ConfigMap holds as values: the two write strings with different quotes.
fn with_files_read(mut object: Value) -> Value {
    if object["kind"] != "ConfigMap" {
        return object;
    }
    for (name, text) in object["data"].as_object_mut().into_iter().flatten() {
        if name.ends_with(".yaml") || name == "mesh" {
            *text = serde_saphyr::from_str(text.as_str().expect("a text")).expect("a file of YAML");
        }
    }
    object
}

fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("LENO_HELM").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| {
        let found = Command::new("helm").arg("version").output().is_ok_and(|output| output.status.success());
        found.then(|| PathBuf::from("helm"))
    })
}

#[test]
fn what_others_need_is_applied_first() {
    let manifests = release(Profile::Ha, &["namespace.create=true"]).render().expect("objects");
    let at = |kind: &str| manifests.iter().position(|manifest| manifest.kind() == kind).expect(kind);
    let order = [
        "Namespace",
        "ServiceAccount",
        "CustomResourceDefinition",
        "ClusterRole",
        "Service",
        "DaemonSet",
        "Deployment",
    ];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])));
    assert!(manifests.iter().all(|manifest| rank(manifest.kind()) < ORDER.len()), "a kind has no place in the order");
    assert_eq!(at("Namespace"), 0);
    assert!(manifests.iter().all(|manifest| yaml::object(&manifest.text).as_ref() == Ok(&manifest.object)));
    assert!(manifests.iter().all(|manifest| !manifest.name().is_empty() && manifest.source.starts_with("leno")));
}

#[test]
fn definitions_can_be_left_out() {
    let mut release = release(Profile::Default, &[]);
    release.crds = false;
    let manifests = release.render().expect("objects");
    assert!(manifests.iter().all(|manifest| manifest.kind() != "CustomResourceDefinition"));
}

#[test]
fn profiles_differ_as_they_say() {
    let [minimal, default, ha] = Profile::ALL.map(|profile| rendered(profile, &[]));
    let control = "Deployment leno-system/leno-control";
    assert_eq!(minimal[control]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"], 0);
    assert_eq!(default[control]["spec"]["replicas"], 1);
    assert_eq!(ha[control]["spec"]["replicas"], 2);
    let there = |objects: &BTreeMap<String, Value>, kind: &str| objects.keys().any(|key| key.starts_with(kind));
    assert_eq!([&minimal, &default, &ha].map(|objects| there(objects, "PodDisruptionBudget")), [false, false, true]);
    assert_eq!([&minimal, &default, &ha].map(|objects| there(objects, "NetworkPolicy")), [false, true, true]);
}

/// The pod templates, by the name of their Deployment or DaemonSet.
fn pods(objects: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let templates = objects.values().filter(|object| object["spec"]["template"].is_object());
    templates
        .map(|object| (object["metadata"]["name"].as_str().unwrap().to_owned(), object["spec"]["template"].clone()))
        .collect()
}

#[test]
fn each_role_has_the_rights_it_needs_and_no_more() {
    let objects = rendered(Profile::Default, &[]);
    let pods = pods(&objects);
    assert_eq!(pods.keys().collect::<Vec<_>>(), ["leno-agent", "leno-control", "leno-node"]);
    for (name, pod) in &pods {
        let container = &pod["spec"]["containers"][0];
        let context = &container["securityContext"];
        assert_eq!(context["privileged"], Value::Null, "{name}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
        let seccomp =
            [context, &pod["spec"]["securityContext"]].map(|context| context["seccompProfile"]["type"].clone());
        assert!(seccomp.contains(&"RuntimeDefault".into()), "{name}");
        assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1, "{name}");
        assert_eq!(pod["spec"]["serviceAccountName"], name.as_str());
        assert_eq!(pod["metadata"]["labels"]["istio.io/dataplane-mode"], "none", "{name}");
    }
    let spec = |name: &str| &pods[name]["spec"];
    assert_eq!(spec("leno-control")["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec("leno-control")["containers"][0]["securityContext"]["capabilities"]["add"], Value::Null);
    for namespaces in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(spec("leno-control")[namespaces], Value::Null);
        assert_eq!(spec("leno-node")[namespaces], Value::Null);
    }
    // The proxy has no way to the API server: no token for it, and no rights.
    assert_eq!(spec("leno-node")["automountServiceAccountToken"], false);
    let bound: BTreeSet<_> = objects
        .values()
        .filter_map(|object| object["subjects"].as_array())
        .flatten()
        .map(|subject| subject["name"].as_str().unwrap())
        .collect();
    assert_eq!(bound, BTreeSet::from(["leno-agent", "leno-control"]));
    // Secrets can be read by the control plane alone; which ones is in its own list.
    let readers: Vec<_> = objects
        .values()
        .filter(|object| object["rules"].as_array().into_iter().flatten().any(|rule| reads(rule, "secrets")))
        .map(key)
        .collect();
    assert_eq!(readers, ["Role leno-system/leno-control"]);
}

/// The control plane says what it needs, and a test of its own holds it to that.
#[test]
fn the_control_plane_is_granted_what_it_asks_for_and_nothing_else() {
    let objects = rendered(Profile::Default, &[]);
    let expected = [
        ("ClusterRole /leno-control", rbac::CLUSTER),
        ("ClusterRole /leno-control-waypoints", rbac::WAYPOINTS),
        ("Role leno-system/leno-control", rbac::NAMESPACE),
    ];
    for (role, rules) in expected {
        let granted = &objects[role]["rules"];
        let wanted: Vec<_> = rules
            .iter()
            .map(|rule| {
                let mut wanted = json!({"apiGroups": [rule.group], "resources": rule.resources, "verbs": rule.verbs});
                if !rule.names.is_empty() {
                    wanted["resourceNames"] = json!(rule.names);
                }
                wanted
            })
            .collect();
        assert_eq!(granted, &Value::Array(wanted), "{role}");
    }
    let without = rendered(Profile::Default, &["waypoint.enabled=false"]);
    assert!(!without.keys().any(|key| key.contains("waypoint")), "who makes no waypoints needs no rights for them");
}

/// It is followed without a restart, so the pods don't change with it, and without a right to read ConfigMaps.
#[test]
fn the_mesh_configuration_is_a_file_of_the_control_plane() {
    let read = |objects: &BTreeMap<String, Value>| {
        let text = objects["ConfigMap leno-system/leno-mesh-config"]["data"]["mesh"].as_str().expect("a text");
        yaml::object(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    let without = rendered(Profile::Default, &[]);
    assert_eq!(read(&without), json!({"extensionProviders": []}));
    let with = objects(&with_file(Profile::Default, PROVIDERS, &[]));
    assert_eq!(read(&with), yaml::object(PROVIDERS).expect("YAML")["meshConfig"]);
    let control = "Deployment leno-system/leno-control";
    assert_eq!(with[control], without[control]);
    for sets in [&[][..], &["waypoint.enabled=false"]] {
        let pod = &rendered(Profile::Default, sets)[control]["spec"]["template"]["spec"];
        let all = |value: &Value| value.as_array().cloned().expect("a list");
        let container = &pod["containers"][0];
        let file = all(&container["env"]).into_iter().find(|it| it["name"] == "LENO_MESH_CONFIG").expect("a variable");
        let mount =
            all(&container["volumeMounts"]).into_iter().find(|it| it["name"] == "mesh-config").expect("a mount");
        // A file that is mounted by itself never changes.
        assert_eq!(mount["subPath"], Value::Null);
        assert_eq!(file["value"], format!("{}/mesh", mount["mountPath"].as_str().expect("a path")));
        let volume = all(&pod["volumes"]).into_iter().find(|it| it["name"] == "mesh-config").expect("a volume");
        assert_eq!(volume["configMap"]["name"], "leno-mesh-config");
    }
}

/// What a waypoint is made of is text to the chart, so it is looked at as what it becomes.
#[test]
fn a_waypoint_has_no_more_rights_than_it_needs() {
    for profile in Profile::ALL {
        let objects = rendered(profile, &["waypoint.drainSeconds=40", "waypoint.env.RUST_LOG=debug"]);
        let text = objects["ConfigMap leno-system/leno-waypoint"]["data"]["template.yaml"].as_str().expect("a text");
        let parts: Vec<Value> = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let of = |kind: &str| parts.iter().find(|part| part["kind"] == kind);
        assert!(["ServiceAccount", "Service", "PodDisruptionBudget"].iter().all(|kind| of(kind).is_some()));
        assert_eq!(of("NetworkPolicy").is_some(), profile != Profile::Minimal, "{profile}");
        for part in &parts {
            assert_eq!(part["metadata"]["name"], "@NAME@");
            assert_eq!(part["metadata"]["labels"]["gateway.istio.io/managed"], "leno.mesh-waypoint-controller");
        }
        let deployment = of("Deployment").expect("a Deployment");
        assert_eq!(deployment["spec"]["replicas"], Value::Null, "whoever scales it decides");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod["terminationGracePeriodSeconds"].as_u64().is_some_and(|grace| grace > 40));
        let container = &pod["containers"][0];
        assert_eq!(container["args"], json!(["waypoint"]));
        assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(pod["volumes"][1]["projected"]["sources"][0]["serviceAccountToken"]["audience"], "istio-ca");
        let env = container["env"].as_array().expect("variables");
        assert!(env.iter().any(|variable| variable["name"] == "RUST_LOG"));
    }
}

fn reads(rule: &Value, resource: &str) -> bool {
    let has = |list: &Value, words: &[&str]| {
        list.as_array().into_iter().flatten().any(|item| words.iter().any(|word| item == word))
    };
    has(&rule["resources"], &[resource, "*"])
        && has(&rule["apiGroups"], &["", "*"])
        && has(&rule["verbs"], &["get", "list", "watch", "*"])
}

/// A control plane signs for the accounts that it is told, and the proxies' account is in the namespace of the release.
#[test]
fn node_proxies_get_certificates_in_any_namespace() {
    let mut release = release(Profile::Default, &[]);
    release.namespace = "mesh".to_owned();
    let manifests = release.render().expect("objects");
    let control = manifests.iter().find(|manifest| manifest.kind() == "Deployment").expect("a control plane");
    let env = control.object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("variables");
    let accounts = env.iter().find(|variable| variable["name"] == "CA_TRUSTED_NODE_ACCOUNTS").expect("accounts");
    assert!(accounts["value"].as_str().expect("a text").split(',').any(|account| account == "mesh/leno-node"));
}

#[test]
fn a_new_proxy_overlaps_the_old_one_and_outlives_its_connections() {
    let objects = rendered(Profile::Default, &["node.drainSeconds=70"]);
    let spec = &objects["DaemonSet leno-system/leno-node"]["spec"];
    assert_eq!(spec["updateStrategy"]["rollingUpdate"], json!({"maxSurge": 1, "maxUnavailable": 0}));
    let pod = &spec["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 70);
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let deadline = env.iter().find(|variable| variable["name"] == "CONNECTION_TERMINATION_DEADLINE").unwrap();
    assert_eq!(deadline["value"], "70s");
}

/// Keys are in what a proxy saves, so the node's own directory, which others may list, has it one level down.
#[test]
fn what_a_proxy_saves_for_the_next_one_is_the_node_s_and_goes_with_its_boot() {
    let objects = rendered(Profile::Default, &[]);
    let pod = &objects["DaemonSet leno-system/leno-node"]["spec"]["template"]["spec"];
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let state = env.iter().find(|variable| variable["name"] == "LENO_STATE_DIR").unwrap()["value"].as_str().unwrap();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount =
        mounts.iter().find(|mount| state.starts_with(&format!("{}/", mount["mountPath"].as_str().unwrap()))).unwrap();
    let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    assert_eq!(volume["hostPath"]["path"], mount["mountPath"]);
    assert!(state.starts_with("/var/run/"));
    // The agent removes it with the rest.
    let agent = &objects["DaemonSet leno-system/leno-agent"]["spec"]["template"]["spec"]["volumes"];
    assert!(agent.as_array().unwrap().iter().any(|volume| volume["hostPath"]["path"] == "/var/run/leno"));
    assert_eq!(state, "/var/run/leno/node/state");
}

#[test]
fn the_definitions_know_every_field_that_is_read() {
    let objects = rendered(Profile::Default, &[]);
    let manifests = [
        ("authorizationpolicies", include_str!("../tests/authorization-policy.yaml")),
        ("peerauthentications", include_str!("../tests/peer-authentication.yaml")),
        ("requestauthentications", include_str!("../tests/request-authentication.yaml")),
        ("destinationrules", include_str!("../tests/destination-rule.yaml")),
        ("virtualservices", include_str!("../tests/virtual-service.yaml")),
    ];
    for (plural, text) in manifests {
        let object = yaml::object(text).expect("YAML");
        let (kind, version) = (object["kind"].as_str().unwrap(), object["apiVersion"].as_str().unwrap());
        let group = version.split('/').next().unwrap();
        let definition = &objects[&format!("CustomResourceDefinition /{plural}.{group}")];
        // That it is a full one: our own strict reader takes it.
        let kind = leno_objects::Kind::from_api(version, kind).expect("a kind that is read");
        assert_eq!(kind.plural(), plural);
        leno_objects::decode(kind, leno_objects::Mode::Strict, object.clone()).expect("it is valid");
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            described(schema, &object["spec"], "spec");
            assert_strict(schema, "spec");
        }
    }
}

/// What Leno does not honour can be stored all the same: its finding is on the object.
#[test]
fn the_definitions_know_fields_of_istio_that_are_not_honoured() {
    let objects = rendered(Profile::Default, &[]);
    let source = "rules/items/properties/from/items/properties/source/properties";
    let known = [
        ("authorizationpolicies.security", format!("{source}/trustDomains")),
        ("authorizationpolicies.security", format!("{source}/notTrustDomains")),
        ("requestauthentications.security", "jwtRules/items/properties/jwks_uri".to_owned()),
        ("requestauthentications.security", "jwtRules/items/properties/spaceDelimitedClaims".to_owned()),
        ("destinationrules.networking", "subsets/items/properties/trafficPolicy/properties/tunnel".to_owned()),
        ("virtualservices.networking", "http/items/properties/mirror_percent".to_owned()),
    ];
    for (name, path) in known {
        let definition = &objects[&format!("CustomResourceDefinition /{name}.istio.io")];
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            assert!(spec.pointer(&format!("/{path}")).is_some(), "{name} {path} in {}", version["name"]);
        }
    }
}

/// Nothing takes fields that it does not name: `kubectl apply` refuses what is misspelt.
fn assert_strict(schema: &Value, path: &str) {
    assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], Value::Null, "{path} takes any field");
    if schema["type"] == "object" {
        let named = [&schema["properties"], &schema["additionalProperties"]];
        assert!(named.iter().any(|fields| fields.is_object()), "{path} drops all fields");
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        assert_strict(field, &format!("{path}.{name}"));
    }
    for inner in ["items", "additionalProperties"].iter().filter_map(|name| schema.get(name)) {
        assert_strict(inner, &format!("{path}[]"));
    }
}

/// Each field of the value is in the schema.
fn described(schema: &Value, value: &Value, path: &str) {
    match value {
        Value::Object(fields) if schema["additionalProperties"].is_object() => {
            fields
                .iter()
                .for_each(|(name, value)| described(&schema["additionalProperties"], value, &format!("{path}.{name}")));
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(schema["properties"][name].is_object(), "{path}.{name} is not in the definition");
                described(&schema["properties"][name], value, &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| described(&schema["items"], item, &format!("{path}[]"))),
        _ => {}
    }
}

/// The words of each rule of a role, as `VERB GROUP/RESOURCE` or `VERB GROUP/RESOURCE NAME`.
fn granted(object: &Value) -> BTreeSet<String> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut all = BTreeSet::new();
    for rule in object["rules"].as_array().into_iter().flatten() {
        let names = texts(&rule["resourceNames"]);
        for (verb, group) in texts(&rule["verbs"])
            .iter()
            .flat_map(|verb| texts(&rule["apiGroups"]).into_iter().map(move |group| (verb, group)))
        {
            for resource in texts(&rule["resources"]) {
                match &names[..] {
                    [] => drop(all.insert(format!("{verb} {group}/{resource}"))),
                    names => all.extend(names.iter().map(|name| format!("{verb} {group}/{resource} {name}"))),
                }
            }
        }
    }
    all
}

/// An agent may see namespaces and pods, note on pods what became of them, and see whether its own
/// DaemonSet and the proxies' are there.
#[test]
fn the_agent_is_granted_these_rights_and_nothing_else() {
    let objects = rendered(Profile::Default, &[]);
    let cluster = granted(&objects["ClusterRole /leno-agent"]);
    let mut expected: BTreeSet<_> = ["namespaces", "pods"]
        .iter()
        .flat_map(|resource| ["get", "list", "watch"].map(|verb| format!("{verb} /{resource}")))
        .collect();
    expected.insert("patch /pods/status".to_owned());
    assert_eq!(cluster, expected);
    // Which pods, RBAC can't say.
    let policy = &objects["ValidatingAdmissionPolicy /leno-agent"]["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    let who = policy["matchConditions"][0]["expression"].as_str().unwrap_or_default();
    assert!(who.contains("'system:serviceaccount:leno-system:leno-agent'"), "{who}");
    let binding = &objects["ValidatingAdmissionPolicyBinding /leno-agent"]["spec"];
    assert_eq!((&binding["policyName"], &binding["validationActions"]), (&json!("leno-agent"), &json!(["Deny"])));
    let without = rendered(Profile::Default, &["agent.ownPodsOnly=false"]);
    assert!(!without.keys().any(|key| key.starts_with("ValidatingAdmission")));
    assert_eq!(
        granted(&objects["Role leno-system/leno-agent"]),
        BTreeSet::from(["leno-agent", "leno-node"].map(|name| format!("get apps/daemonsets {name}")))
    );
    // Nobody may do everything, or everything to something.
    for (key, object) in &objects {
        assert!(granted(object).iter().all(|right| !right.contains('*')), "{key}");
    }
}

/// What a role may do as root is what its work needs: the agent enters the namespaces of running pods by their processes, the
/// proxy by the descriptors that it is handed.
#[test]
fn each_role_has_these_capabilities_and_these_files_of_the_node() {
    let objects = rendered(Profile::Default, &[]);
    let pods = pods(&objects);
    let capabilities =
        |name: &str| pods[name]["spec"]["containers"][0]["securityContext"]["capabilities"]["add"].clone();
    assert_eq!(capabilities("leno-node"), json!(["SYS_ADMIN", "NET_ADMIN", "NET_RAW"]));
    assert_eq!(capabilities("leno-agent"), json!(["SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "DAC_OVERRIDE"]));
    let directories = |name: &str| -> Vec<String> {
        let volumes = pods[name]["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.filter_map(|volume| volume["hostPath"]["path"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(directories("leno-control"), [""; 0]);
    assert_eq!(
        directories("leno-agent"),
        ["/opt/cni/bin", "/etc/cni/net.d", "/var/run/leno", "/var/run/ztunnel", "/var/lib/leno"]
    );
    // Its token is for the control plane alone: the API server refuses it.
    let sources = pods["leno-node"]["spec"]["volumes"].as_array().into_iter().flatten();
    let audiences: Vec<_> = sources
        .filter_map(|volume| volume["projected"]["sources"].as_array())
        .flatten()
        .filter_map(|source| source["serviceAccountToken"]["audience"].as_str())
        .collect();
    assert_eq!(audiences, ["istio-ca"]);
}

#[test]
fn every_pod_is_annotated_for_prometheus_unless_that_is_switched_off() {
    let annotated = |sets: &[&str]| -> Vec<String> {
        let pods = pods(&rendered(Profile::Default, sets));
        let text =
            |pod: &Value, name: &str| pod["metadata"]["annotations"][name].as_str().unwrap_or_default().to_owned();
        let words = pods.values().map(|pod| {
            let [scrape, port, path] =
                ["scrape", "port", "path"].map(|name| text(pod, &format!("prometheus.io/{name}")));
            format!("{scrape} {port}{path}")
        });
        words.collect()
    };
    let expected = ["true 15014/stats/prometheus", "true 15020/stats/prometheus", "true 15020/stats/prometheus"];
    assert_eq!(annotated(&[]), expected);
    assert_eq!(annotated(&["prometheus.annotations=false"]), [" ", " ", " "]);
}

#[test]
fn the_dashboard_is_one_that_grafana_takes() {
    assert!(!rendered(Profile::Default, &[]).contains_key("ConfigMap leno-system/leno-dashboard"));
    let objects = rendered(Profile::Default, &["grafana.dashboard=true"]);
    let object = &objects["ConfigMap leno-system/leno-dashboard"];
    assert_eq!(object["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(object["data"]["leno.json"].as_str().unwrap()).expect("JSON");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
    assert!(panels.iter().all(|panel| panel["gridPos"]["w"].as_u64().is_some_and(|width| width <= 24)));
}
