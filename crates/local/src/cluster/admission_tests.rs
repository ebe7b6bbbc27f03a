use super::*;
use crate::files::parse;

fn completed(text: &str) -> Result<(Manifests, Vec<String>), String> {
    let mut manifests = parse("a.yaml", text).map_err(|e| e.to_string())?;
    let warnings = complete(&mut manifests, &["node-1".into(), "node-2".into()], true).map_err(|e| e.to_string())?;
    Ok((manifests, warnings))
}

fn refused(text: &str) -> String {
    completed(text).expect_err("must be refused")
}

fn pod(name: &str, extra: &str, container: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  containers:\n  - \
         {{name: c, command: [x]{container}}}\n{extra}"
    )
}

fn service(name: &str, spec: &str) -> String {
    format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}], {spec}}}\n")
}

#[test]
fn an_unknown_node_is_refused_with_the_known_ones() {
    let said = refused(&pod("a", "  nodeName: node-9\n", ""));
    assert_eq!(said, "a.yaml:2: Pod default/a: there is no node node-9; the nodes are node-1, node-2 (see --nodes)");
}

#[test]
fn an_image_alone_is_refused() {
    let said = refused(&pod("a", "  - {name: x, image: nginx}\n", ""));
    assert!(said.contains("container x has no command: Leno runs local processes, not images"), "{said}");
}

#[test]
fn clashes_are_refused() {
    let said = refused(&format!(
        "{}{}",
        service("a", "clusterIP: 10.96.1.1, selector: {app: a}"),
        service("b", "clusterIP: 10.96.1.1, selector: {app: a}")
    ));
    assert!(said.contains("clusterIP 10.96.1.1 is taken by Service default/a"), "{said}");
    assert!(refused(&service("a", "clusterIP: 10.96.0.10")).contains("DNS server"));
}

#[test]
fn references_to_nothing_are_told() {
    let (_, warnings) = completed(&format!(
        "{}{}{}{}",
        pod("a", "  serviceAccountName: nope\n", ""),
        service("nobody", "selector: {app: other}"),
        service("bare", ""),
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: named}\nspec: {ports: [{port: 80, targetPort: web}], \
         selector: {app: a}}\n"
    ))
    .unwrap();
    let all = warnings.join("\n");
    for part in [
        "ServiceAccount default/nope is not declared",
        "Service default/nobody: no pod has the labels it selects",
        "Service default/bare: has neither a selector nor an EndpointSlice",
        "no container it selects has a port named web, so port 80 leads nowhere",
    ] {
        assert!(all.contains(part), "{part} in {all}");
    }
}

#[test]
fn namespaces_are_made_when_missing() {
    let text = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}\n";
    let (manifests, warnings) = completed(text).unwrap();
    assert_eq!(warnings, ["a.yaml:1: Namespace shop is not declared; it is made without labels"]);
    assert!(manifests.objects.contains_key(&ObjectKey::new(Kind::Namespace, "", "shop")));
}

#[test]
fn services_get_addresses() {
    let text = format!(
        "{}{}{}{}",
        service("auto", "selector: {a: b}"),
        service("fixed", "clusterIP: 10.96.7.7"),
        service("headless", "clusterIP: None"),
        service("six", "ipFamilies: [IPv6]") + &service("both", "ipFamilyPolicy: PreferDualStack")
    );
    let (manifests, _) = completed(&text).unwrap();
    let addresses = |name: &str| match &*manifests.objects[&ObjectKey::new(Kind::Service, "default", name)].object {
        Object::Service(service) => service.spec.virtual_addresses(),
        _ => Vec::new(),
    };
    assert!(addresses("auto").iter().all(IpAddr::is_ipv4) && addresses("auto").len() == 1);
    assert_eq!(addresses("both").len(), 2);
    assert_eq!(addresses("fixed"), ["10.96.7.7".parse::<IpAddr>().unwrap()]);
    assert!(addresses("headless").is_empty());
    assert!(addresses("six").iter().all(IpAddr::is_ipv6) && addresses("six").len() == 1);
    let (again, _) = completed(&text).unwrap();
    assert_eq!(manifests, again);
}

#[test]
fn a_variable_from_elsewhere_is_refused_with_its_place() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec:\n  containers:\n  - name: c\n    \
                command: [x]\n    env:\n    - {name: V, valueFrom: {configMapKeyRef: {name: m, key: k}}}\n";
    let mut manifests = parse("f.yaml", text).unwrap();
    let said = complete(&mut manifests, &["node-1".to_owned()], true).unwrap_err().to_string();
    assert!(said.starts_with("f.yaml:1: ") && said.contains("container c: env V: "), "{said}");
}
