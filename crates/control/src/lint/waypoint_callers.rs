//! Policies of pods that stand behind a waypoint: the caller that they see is the waypoint.

use std::collections::BTreeMap;

use leno_objects::{AuthorizationPolicy, Labels, ObjectStore, PolicyAction, Source, selects};

use crate::translate::Options;
use crate::translate::authorization::{is_dry_run, is_enforced, pattern};
use crate::translate::waypoint::{Addressed, Named, principal, required};

/// ALLOW policies that together let a waypoint's requests not through to the pods of one of its services, each with what is
/// to be said of it. `pods` are the labels of those that exist or will be created, each with its namespace.
pub(super) fn kept_out<'a>(
    options: &Options,
    store: &'a ObjectStore,
    pods: &[(&str, &Labels)],
) -> Vec<(&'a AuthorizationPolicy, String)> {
    let mut found: Vec<(&AuthorizationPolicy, String)> = Vec::new();
    let asked = |policy: &&AuthorizationPolicy| {
        policy.spec.action == PolicyAction::Allow && is_enforced(policy) && !is_dry_run(policy)
    };
    let allow: Vec<_> = store.authorization_policies().filter(asked).collect();
    let mut by_namespace: BTreeMap<&str, Vec<&Labels>> = BTreeMap::new();
    for (namespace, labels) in pods {
        by_namespace.entry(namespace).or_default().push(labels);
    }
    for service in store.services().filter(|service| !service.spec.selector.is_empty()) {
        let (namespace, name) = (&*service.metadata.namespace, &*service.metadata.name);
        let here: Vec<_> = allow
            .iter()
            .copied()
            .filter(|policy| [namespace, &*options.root_namespace].contains(&&*policy.metadata.namespace))
            .collect();
        if here.is_empty() {
            continue;
        }
        let Some(waypoint) = required(options, store, &service.metadata, Addressed::Service) else { continue };
        let gateway = waypoint.gateway;
        let pods = by_namespace.get(namespace).into_iter().flatten();
        for labels in pods.filter(|labels| selects(&service.spec.selector, labels)) {
            let is_about =
                |policy: &&AuthorizationPolicy| policy.selected().is_none_or(|wanted| selects(wanted, labels));
            let mut about: Vec<_> = here.iter().copied().filter(is_about).collect();
            if about.is_empty() || about.iter().any(|policy| admits(options, policy, &gateway)) {
                continue;
            }
            // One of several services is enough to be told of.
            about.retain(|policy| !found.iter().any(|(other, _)| std::ptr::eq(*other, *policy)));
            for policy in about {
                let (caller, (at, called)) = (principal(options, &gateway), &gateway);
                let finding = format!(
                    "requests for Service {namespace}/{name} reach its pods from waypoint {at}/{called}, which no ALLOW policy of \
                     these pods lets in, so they are refused: allow principal {caller} here, and say who may call the \
                     Service in a policy with targetRefs"
                );
                found.push((policy, finding));
            }
        }
    }
    found
}

/// Whether some rule is about the waypoint as the caller. Conditions count as met: they may be.
fn admits(options: &Options, policy: &AuthorizationPolicy, gateway: &Named) -> bool {
    let rules = policy.spec.rules.iter();
    rules.map(|rule| &rule.from).any(|from| {
        from.is_empty() || from.iter().any(|from| is_from(options, &policy.metadata.namespace, &from.source, gateway))
    })
}

fn is_from(options: &Options, own: &str, source: &Source, gateway: &Named) -> bool {
    let caller = principal(options, gateway);
    let principal = |text: &String| pattern(text.strip_prefix("spiffe://").unwrap_or(text)).matches(&caller);
    let namespace = |text: &String| pattern(text).matches(&gateway.0);
    let account = |text: &String| text.split_once('/').unwrap_or((own, text)) == (&*gateway.0, &*gateway.1);
    let passes = |wanted: &[String], unwanted: &[String], is: &dyn Fn(&String) -> bool| {
        (wanted.is_empty() || wanted.iter().any(is)) && !unwanted.iter().any(is)
    };
    passes(&source.principals, &source.not_principals, &principal)
        && passes(&source.namespaces, &source.not_namespaces, &namespace)
        && passes(&source.service_accounts, &source.not_service_accounts, &account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::load;

    const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec: {gatewayClassName: leno-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
";

    /// The names of the policies that are told of.
    fn told(policies: &[(&str, &str)]) -> Vec<String> {
        let mut store = ObjectStore::default();
        let policies = policies.iter().map(|(name, spec)| {
            format!(
                "\n---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                 metadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
            )
        });
        for object in load(&(SHOP.to_owned() + &policies.collect::<String>())) {
            store.upsert(object);
        }
        let labels: Labels = [("app".into(), "web".into())].into_iter().collect();
        let found = kept_out(&Options::default(), &store, &[("shop", &labels)]);
        for (_, finding) in &found {
            assert!(finding.contains("Service shop/web reach its pods from waypoint shop/gate"), "{finding}");
            assert!(finding.contains("cluster.local/ns/shop/sa/gate"), "{finding}");
        }
        found.iter().map(|(policy, _)| policy.metadata.name.to_string()).collect()
    }

    fn from(source: &str) -> String {
        format!("{{selector: {{matchLabels: {{app: web}}}}, rules: [{{from: [{{source: {{{source}}}}}]}}]}}")
    }

    #[test]
    fn a_policy_that_keeps_the_waypoint_out_is_told_of() {
        for source in [
            "principals: [cluster.local/ns/shop/sa/front]",
            "principals: ['*'], notPrincipals: [cluster.local/ns/shop/sa/gate]",
            "namespaces: [front]",
            "serviceAccounts: [shop/front]",
        ] {
            assert_eq!(told(&[("p", &from(source))]), ["p"], "{source}");
        }
        assert_eq!(told(&[("nobody", "{}")]), ["nobody"], "a policy without rules lets nobody in");
    }

    #[test]
    fn nothing_is_said_where_it_gets_through() {
        for source in [
            "principals: [cluster.local/ns/shop/sa/gate]",
            "principals: ['*/sa/gate']",
            "namespaces: [shop]",
            "serviceAccounts: [gate]",
            "notNamespaces: [front]",
            "ipBlocks: [10.0.0.0/8]",
        ] {
            assert_eq!(told(&[("p", &from(source))]), [""; 0], "{source}");
        }
        let front = from("principals: [cluster.local/ns/shop/sa/front]");
        let also = from("principals: [cluster.local/ns/shop/sa/gate]");
        assert_eq!(told(&[("p", &front), ("q", &also)]), [""; 0], "one of several is enough");
        let not_about = [
            front.replace("app: web", "app: other"),
            front.replace("{selector", "{action: DENY, selector"),
            front.replace("selector: {matchLabels: {app: web}}", "targetRefs: [{kind: Service, group: '', name: web}]"),
        ];
        for spec in &not_about {
            assert_eq!(told(&[("p", spec)]), [""; 0], "{spec}");
        }
        assert_eq!(told(&[]), [""; 0]);
    }
}
