//! Finds objects that are valid but probably not what their author meant: labels, policies and endpoints that refer to
//! nothing.

mod annotations;
mod waypoint_callers;
mod waypoints;

use std::collections::{BTreeMap, BTreeSet};

use crate::translate::Options;
use leno_objects::{
    AddressType, AuthorizationPolicy, DATAPLANE_MODE, EndpointSlice, Kind, Labels, ObjectKey, ObjectMeta, ObjectStore,
    Pod, SERVICE_NAME_LABEL, Service, did_you_mean, selects,
};

/// Findings by object, each a sentence.
///
/// Pods that a Deployment will create count as existing. It looks at every object, so call it after loading manifests,
/// not after every change.
pub fn lint(options: &Options, store: &ObjectStore) -> BTreeMap<ObjectKey, Vec<String>> {
    let mut findings = Findings::default();
    let pods = Pods::of(store);
    enrolment(store, &mut findings);
    for (kind, metadata) in annotations::objects(store) {
        for finding in annotations::of(kind, metadata) {
            findings.add(kind, metadata, finding);
        }
    }
    for policy in store.authorization_policies() {
        authorization_policy(options, &pods, policy, &mut findings);
    }
    for (policy, finding) in waypoint_callers::kept_out(options, store, &pods.labels) {
        findings.add(Kind::AuthorizationPolicy, &policy.metadata, finding);
    }
    peer_authentications(options, store, &pods, &mut findings);
    for slice in store.endpoint_slices() {
        endpoint_slice(store, slice, &mut findings);
    }
    findings.0
}

#[derive(Default)]
struct Findings(BTreeMap<ObjectKey, Vec<String>>);

impl Findings {
    fn add(&mut self, kind: Kind, metadata: &ObjectMeta, finding: String) {
        self.0.entry(key(kind, metadata)).or_default().push(finding);
    }
}

/// Labels and service accounts of all pods that exist or will be created.
struct Pods<'a> {
    labels: Vec<(&'a str, &'a Labels)>,
    accounts: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Pods<'a> {
    fn of(store: &'a ObjectStore) -> Self {
        let own = store.pods().map(|pod| (&pod.metadata.namespace, &pod.metadata.labels, &pod.spec));
        let made = store.deployments().map(|deployment| {
            let template = &deployment.spec.template;
            (&deployment.metadata.namespace, &template.metadata.labels, &template.spec)
        });
        let sets = store.stateful_sets().map(|set| {
            let template = &set.spec.template;
            (&set.metadata.namespace, &template.metadata.labels, &template.spec)
        });
        let jobs = store.jobs().map(|job| {
            let template = &job.spec.template;
            (&job.metadata.namespace, &template.metadata.labels, &template.spec)
        });
        let mut out = Self { labels: Vec::new(), accounts: BTreeSet::new() };
        for (namespace, labels, spec) in own.chain(made).chain(sets).chain(jobs) {
            out.labels.push((namespace, labels));
            out.accounts.insert((namespace, spec.account()));
        }
        let declared = store.service_accounts().map(|account| &account.metadata);
        // A waypoint's account is called as its Gateway.
        let declared = declared.chain(store.gateways().map(|gateway| &gateway.metadata));
        out.accounts.extend(declared.map(|metadata| (&*metadata.namespace, &*metadata.name)));
        out
    }

    fn any(&self, namespace: Option<&str>, wanted: &Labels) -> bool {
        self.labels.iter().any(|(ns, labels)| namespace.is_none_or(|wanted| wanted == *ns) && selects(wanted, labels))
    }
}

fn show(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn enrolment(store: &ObjectStore, findings: &mut Findings) {
    let namespaces = store.namespaces().map(|object| (Kind::Namespace, &object.metadata, &object.metadata.labels));
    let pods = store.pods().map(|object| (Kind::Pod, &object.metadata, &object.metadata.labels));
    let services = store.services().map(|object| (Kind::Service, &object.metadata, &object.metadata.labels));
    let templates =
        store.deployments().map(|object| (Kind::Deployment, &object.metadata, &object.spec.template.metadata.labels));
    let sets = store.stateful_sets().map(|set| (Kind::StatefulSet, &set.metadata, &set.spec.template.metadata.labels));
    let jobs = store.jobs().map(|job| (Kind::Job, &job.metadata, &job.spec.template.metadata.labels));
    for (kind, metadata, labels) in namespaces.chain(pods).chain(services).chain(templates).chain(sets).chain(jobs) {
        if let Some(mode) = labels.get(DATAPLANE_MODE)
            && !["ambient", "none"].contains(&&**mode)
        {
            let hint = did_you_mean(mode, ["ambient", "none"]).unwrap_or("ambient or none");
            findings.add(kind, metadata, format!("label {DATAPLANE_MODE}={mode} means nothing; did you mean {hint}?"));
        }
        let found = [waypoints::of_user(store, kind, metadata, labels), waypoints::of_bypass(metadata)];
        for finding in found.into_iter().flatten() {
            findings.add(kind, metadata, finding);
        }
    }
    for gateway in store.gateways() {
        for finding in waypoints::of_gateway(store, gateway).into_iter().chain(waypoints::of_bypass(&gateway.metadata))
        {
            findings.add(Kind::Gateway, &gateway.metadata, finding);
        }
    }
}

fn key(kind: Kind, metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(kind, metadata.namespace.clone(), metadata.name.clone())
}

fn authorization_policy(options: &Options, pods: &Pods<'_>, policy: &AuthorizationPolicy, findings: &mut Findings) {
    let namespace = &*policy.metadata.namespace;
    let is_root = *namespace == *options.root_namespace;
    if let Some(selector) = &policy.spec.selector
        && !pods.any((!is_root).then_some(namespace), &selector.match_labels)
    {
        findings.add(
            Kind::AuthorizationPolicy,
            &policy.metadata,
            format!("the selector {} selects no pod", show(&selector.match_labels)),
        );
    }
    let sources = policy.spec.rules.iter().flat_map(|rule| &rule.from).map(|from| &from.source);
    for source in sources {
        let by_account = source.service_accounts.iter().chain(&source.not_service_accounts);
        let mut named: Vec<(&str, &str)> =
            by_account.map(|account| account.split_once('/').unwrap_or((namespace, account))).collect();
        let own = format!("{}/ns/", options.trust_domain);
        for principal in source.principals.iter().chain(&source.not_principals).filter(|p| !p.contains('*')) {
            let bare = principal.strip_prefix("spiffe://").unwrap_or(principal);
            match bare.strip_prefix(&own) {
                Some(rest) => named.extend(rest.split_once("/sa/")),
                // The translation reports another trust domain.
                None if bare.contains("/ns/") => {}
                None => findings.add(
                    Kind::AuthorizationPolicy,
                    &policy.metadata,
                    format!("principal {principal:?} matches nobody: a principal reads {own}NAMESPACE/sa/ACCOUNT"),
                ),
            }
        }
        for (namespace, account) in named {
            if !pods.accounts.contains(&(namespace, account)) {
                let finding = format!("no pod runs as service account {namespace}/{account}, which it names");
                findings.add(Kind::AuthorizationPolicy, &policy.metadata, finding);
            }
        }
    }
}

fn peer_authentications(options: &Options, store: &ObjectStore, pods: &Pods<'_>, findings: &mut Findings) {
    let mut levels: BTreeMap<(&str, Vec<_>), Vec<_>> = BTreeMap::new();
    for peer in store.peer_authentications() {
        let labels = peer.spec.selector.as_ref().map(|selector| &selector.match_labels).filter(|l| !l.is_empty());
        if let Some(labels) = labels
            && !pods.any(Some(&peer.metadata.namespace), labels)
        {
            let hint = if *peer.metadata.namespace == *options.root_namespace {
                " (with a selector it reaches only its own namespace)"
            } else {
                ""
            };
            findings.add(
                Kind::PeerAuthentication,
                &peer.metadata,
                format!("the selector {} selects no pod{hint}", show(labels)),
            );
        }
        levels.entry((&peer.metadata.namespace, labels.into_iter().flatten().collect())).or_default().push(peer);
    }
    for mut same in levels.into_values() {
        same.sort_by_key(|peer| (peer.metadata.creation_timestamp, &peer.metadata.name));
        if let Some((counts, others)) = same.split_first() {
            for other in others {
                let finding = format!(
                    "has no effect: {} has the same scope and comes first (by age, then by name)",
                    counts.metadata.name
                );
                findings.add(Kind::PeerAuthentication, &other.metadata, finding);
            }
        }
    }
}

fn endpoint_slice(store: &ObjectStore, slice: &EndpointSlice, findings: &mut Findings) {
    let metadata = &slice.metadata;
    let Some(name) = slice.service() else {
        findings.add(Kind::EndpointSlice, metadata, format!("has no effect without the label {SERVICE_NAME_LABEL}"));
        return;
    };
    match Service::get(store, &metadata.namespace, name) {
        None => findings.add(
            Kind::EndpointSlice,
            metadata,
            format!("has no effect: there is no Service {}/{name}", metadata.namespace),
        ),
        Some(service) if !service.spec.selector.is_empty() => {
            let finding =
                format!("has no effect: Service {name} has a selector, so its endpoints are the pods it selects");
            findings.add(Kind::EndpointSlice, metadata, finding);
        }
        Some(service) => {
            let served = |name: &str| slice.ports.iter().any(|port| port.name == name);
            for port in service.spec.ports.iter().filter(|port| !served(&port.name)) {
                let finding = format!("port {} of Service {name} has no port called {:?} here", port.port, port.name);
                findings.add(Kind::EndpointSlice, metadata, finding);
            }
        }
    }
    if slice.address_type == AddressType::Fqdn {
        findings.add(
            Kind::EndpointSlice,
            metadata,
            "addressType FQDN is not supported: its endpoints are left out".to_owned(),
        );
    }
    for target in slice.endpoints.iter().filter_map(|endpoint| endpoint.target_ref.as_ref()) {
        let own = target.namespace.is_empty() || *target.namespace == *metadata.namespace;
        if target.kind == "Pod" && own && Pod::get(store, &metadata.namespace, &target.name).is_none() {
            findings.add(
                Kind::EndpointSlice,
                metadata,
                format!("there is no Pod {}/{}, which it names", metadata.namespace, target.name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::load;

    const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: c}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {serviceAccountName: db, containers: [{name: c}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

    fn findings(kind: &str, version: &str, metadata: &str, body: &str) -> Vec<String> {
        let yaml = format!(
            "{PODS}\n---\napiVersion: {version}\nkind: {kind}\nmetadata: {{namespace: shop, name: x, {metadata}}}\n{body}\n"
        );
        let mut store = ObjectStore::default();
        for object in load(&yaml) {
            store.upsert(object);
        }
        lint(&Options::default(), &store).into_values().flatten().collect()
    }

    fn policy(spec: &str) -> Vec<String> {
        findings("AuthorizationPolicy", "security.istio.io/v1", "", &format!("spec: {spec}"))
    }

    #[test]
    fn enrolment_labels() {
        let pod =
            |labels: &str| findings("Pod", "v1", &format!("labels: {{{labels}}}"), "spec: {containers: [{name: c}]}");
        assert_eq!(pod("istio.io/dataplane-mode: ambient"), Vec::<String>::new());
        assert_eq!(pod("istio.io/dataplane-mode: none, istio.io/use-waypoint: none"), Vec::<String>::new());
        let slip = pod("istio.io/dataplane-mode: ambiant");
        assert_eq!(slip, ["label istio.io/dataplane-mode=ambiant means nothing; did you mean ambient?"]);
        assert!(pod("istio.io/use-waypoint: waypoint")[0].contains("no Gateway shop/waypoint"));
    }

    #[test]
    fn waypoints() {
        let gateway = "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gate, namespace: infra}\n\
             spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: Same}}}]}\n";
        let service = |labels: &str, gateway: &str| {
            let body = format!("spec: {{ports: [{{port: 1}}]}}{gateway}");
            findings("Service", "v1", &format!("labels: {{istio.io/use-waypoint: {labels}}}"), &body).join("; ")
        };
        let there = "gate, istio.io/use-waypoint-namespace: infra";
        let open = gateway.replace("Same", "All");
        assert_eq!(service(there, &open), "");
        assert_eq!(service("none", ""), "");
        assert!(service(there, gateway).contains("does not let namespace shop use it"));
        assert!(service("gat, istio.io/use-waypoint-namespace: infra", &open).contains("did you mean gate?"));
        let for_pods = open.replace("infra}", "infra, labels: {istio.io/waypoint-for: workload}}");
        assert!(service(there, &for_pods).contains("nothing that is addressed to services passes"));
        let bypass = open.replace("infra}", "infra, annotations: {leno.mesh/waypoint-bypass: 'yes'}}");
        assert!(service(there, &bypass).contains("the only value is allowed"));
        let told = open.replace("infra}", "infra, annotations: {leno.mesh/waypoint-forward-client-cert: 'yes'}}");
        assert!(service(there, &told).contains("waypoint-forward-client-cert=yes means nothing; it is true or false"));
        let alone = findings(
            "Pod",
            "v1",
            "labels: {istio.io/use-waypoint-namespace: infra}",
            "spec: {containers: [{name: c}]}",
        );
        assert!(alone[0].contains("means nothing without istio.io/use-waypoint"));
    }

    #[test]
    fn policies() {
        let from = |source: &str| policy(&format!("{{rules: [{{from: [{{source: {{{source}}}}}]}}]}}"));
        let none: Vec<String> = Vec::new();
        assert_eq!(policy("{selector: {matchLabels: {app: web}}}"), none);
        assert_eq!(policy("{selector: {matchLabels: {app: db}}}"), none);
        assert_eq!(policy("{selector: {matchLabels: {app: wbe}}}"), ["the selector app=wbe selects no pod"]);
        assert_eq!(from("principals: [cluster.local/ns/shop/sa/db, '*/sa/whoever']"), none);
        assert_eq!(from("serviceAccounts: [web, shop/db]"), none);
        let unknown = ["no pod runs as service account shop/dbb, which it names"];
        assert_eq!(from("principals: [cluster.local/ns/shop/sa/dbb]"), unknown);
        assert_eq!(from("serviceAccounts: [dbb]"), unknown);
        assert!(from("principals: [shop/db]")[0].contains("a principal reads cluster.local/ns/NAMESPACE/sa/ACCOUNT"));
    }

    #[test]
    fn peer_authentication_that_is_shadowed() {
        let second = "spec: {mtls: {mode: STRICT}}\n---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {namespace: shop, name: w}\nspec: {}";
        let found = findings("PeerAuthentication", "security.istio.io/v1", "", second);
        assert_eq!(found, ["has no effect: w has the same scope and comes first (by age, then by name)"]);
        let found =
            findings("PeerAuthentication", "security.istio.io/v1", "", "spec: {selector: {matchLabels: {a: b}}}");
        assert_eq!(found, ["the selector a=b selects no pod"]);
    }

    #[test]
    fn slices() {
        let slice = |service: &str, ports: &str, endpoints: &str| {
            let label =
                if service.is_empty() { String::new() } else { format!("labels: {{{SERVICE_NAME_LABEL}: {service}}}") };
            let body = format!("addressType: IPv4\nports: [{ports}]\nendpoints: [{endpoints}]");
            findings("EndpointSlice", "discovery.k8s.io/v1", &label, &body)
        };
        let sql = "{name: sql, port: 1}";
        assert_eq!(slice("db", sql, "{addresses: [192.0.2.1]}"), Vec::<String>::new());
        assert!(slice("", sql, "")[0].contains("without the label kubernetes.io/service-name"));
        assert!(slice("dbb", sql, "")[0].contains("there is no Service shop/dbb"));
        assert!(slice("web", sql, "")[0].contains("Service web has a selector"));
        assert!(slice("db", "{name: other, port: 1}", "")[0].contains("no port called \"sql\""));
        let dangling = slice("db", sql, "{addresses: [192.0.2.1], targetRef: {kind: Pod, name: gone}}");
        assert_eq!(dangling, ["there is no Pod shop/gone, which it names"]);
    }
}
