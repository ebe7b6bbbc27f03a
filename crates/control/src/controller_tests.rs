use std::collections::BTreeSet;

use leno_proto::{Resource as Decoded, address_from_proto, authorization_from_proto, security, workload};

use super::*;
use crate::Feed;
use crate::testing::{fed, load, upserts};
use crate::translate::Options;

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.1.0.1, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, rules: [{to: [{operation: {ports: ['80'], methods: [GET]}}]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

fn names(resources: &Resources, type_url: &str) -> Vec<String> {
    resources.of(type_url).into_iter().flat_map(|all| all.keys()).map(ToString::to_string).collect()
}

#[test]
fn what_is_published_decodes_to_the_mesh() {
    let (controller, _) = fed(OBJECTS);
    controller.publish();
    let (mesh, resources) = (controller.mesh().borrow().clone(), controller.resources().borrow().clone());
    assert_eq!(names(&resources, ADDRESS_TYPE), ["Kubernetes//Pod/shop/web-1", "shop/web.shop.svc.cluster.local"]);
    assert_eq!(names(&resources, AUTHORIZATION_TYPE), ["istio-system/istio_converted_static_strict", "shop/p"]);
    for resource in resources.of(ADDRESS_TYPE).expect("some").values() {
        match address_from_proto(workload::Address::decode(resource.body()).expect("sound")).expect("sound") {
            Decoded::Workload(found) => {
                assert_eq!(mesh.workload(&found.uid).map(|w| (**w).clone()), Some(found));
                assert_eq!(resource.aliases(), ["/10.0.0.1"]);
            }
            Decoded::Service(found) => {
                assert_eq!(mesh.service(&found.id).map(|s| (**s).clone()), Some(found));
                assert_eq!(resource.aliases(), ["/10.1.0.1"]);
            }
        }
    }
    for resource in resources.of(AUTHORIZATION_TYPE).expect("some").values() {
        let policy = security::Authorization::decode(resource.body()).expect("sound");
        let policy = authorization_from_proto(policy).expect("sound");
        assert_eq!(mesh.policy(&policy.id).map(|p| (**p).clone()), Some(policy));
    }
}

/// Another process, and another order, give every resource the same version.
#[test]
fn versions_depend_on_content_only() {
    let [first, second] = [false, true].map(|reversed| {
        let (controller, feed) = fed("");
        let mut changes = upserts(OBJECTS);
        if reversed {
            changes.reverse();
        }
        for change in changes {
            feed.apply([change]);
        }
        controller.publish();
        controller.resources().borrow().clone()
    });
    for type_url in [ADDRESS_TYPE, AUTHORIZATION_TYPE] {
        assert_eq!(first.of(type_url), second.of(type_url));
    }
}

#[test]
fn a_change_replaces_only_what_it_touches() {
    let (controller, feed) = fed(OBJECTS);
    controller.publish();
    let before = controller.resources().borrow().clone();
    feed.apply([Change::Remove(ObjectKey::new(Kind::PeerAuthentication, "shop", "strict"))]);
    controller.publish();
    let after = controller.resources().borrow().clone();
    assert_eq!(after.generation(), before.generation() + 1);
    assert_eq!(names(&after, AUTHORIZATION_TYPE), ["shop/p"]);
    let changed: BTreeSet<_> = after
        .of(ADDRESS_TYPE)
        .expect("some")
        .iter()
        .filter(|(name, resource)| before.of(ADDRESS_TYPE).and_then(|all| all.get(name)) != Some(resource))
        .map(|(name, _)| name.to_string())
        .collect();
    assert_eq!(changed, ["Kubernetes//Pod/shop/web-1".to_owned()].into());
    // Nothing to publish, nothing published.
    feed.apply(upserts(OBJECTS).into_iter().take(1));
    controller.publish();
    assert_eq!(controller.generation(), after.generation());
}

/// Servers order a change of scope by the versions alone.
#[test]
fn versions_tell_how_far_a_policy_reaches() {
    let (controller, feed) = fed("");
    let version = |namespace: &str, spec: &str| {
        let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy";
        feed.apply(upserts(&format!("{policy}\nmetadata: {{name: x, namespace: {namespace}}}\nspec: {spec}\n")));
        controller.publish();
        let resources = controller.resources().borrow().clone();
        resources.of(AUTHORIZATION_TYPE).expect("some")[&*format!("{namespace}/x")].version().to_string()
    };
    let reach = |version: String| version.rsplit_once('-').map(|(_, reach)| reach.to_owned());
    assert_eq!(reach(version("shop", "{selector: {matchLabels: {app: web}}}")).as_deref(), Some("0"));
    assert_eq!(reach(version("shop", "{}")).as_deref(), Some("1"));
    assert_eq!(reach(version("istio-system", "{}")).as_deref(), Some("2"));
}

#[test]
fn replacing_everything_applies_the_difference() {
    let (controller, feed) = fed(OBJECTS);
    feed.replace(load(OBJECTS).into_iter().take(2));
    assert_eq!(controller.store().len(), 2);
    controller.publish();
    assert!(names(&controller.resources().borrow(), AUTHORIZATION_TYPE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn changes_close_together_are_published_as_one() {
    let (controller, feed) = fed("");
    let publisher = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run().await }
    });
    let mut resources = controller.resources();
    let changes = upserts(OBJECTS);
    let started = Instant::now();
    for change in changes {
        feed.apply([change]);
        tokio::time::sleep(QUIET / 2).await;
    }
    resources.changed().await.expect("published");
    assert_eq!(resources.borrow_and_update().generation(), 1);
    assert_eq!(names(&resources.borrow(), ADDRESS_TYPE).len(), 2);
    assert!(started.elapsed() < MAX_DELAY);

    // Changes that never pause are published all the same.
    let started = Instant::now();
    let pod = |i: u32| OBJECTS.split("\n---").next().expect("one").replace("10.0.0.1", &format!("10.0.1.{i}"));
    let mut i = 0;
    while !resources.has_changed().expect("the controller lives") {
        i += 1;
        feed.apply(upserts(&pod(i)));
        tokio::time::sleep(QUIET / 2).await;
    }
    let took = started.elapsed();
    assert!(took >= MAX_DELAY - QUIET && took <= MAX_DELAY + QUIET, "{took:?}");

    // One that comes alone does not wait for others as long.
    tokio::time::sleep(2 * CALM).await;
    resources.mark_unchanged();
    let started = Instant::now();
    feed.apply(upserts(&pod(0)));
    resources.changed().await.expect("published");
    assert!(started.elapsed() <= BREATH + Duration::from_millis(1), "{:?}", started.elapsed());
    publisher.abort();
}

#[test]
fn what_is_found_is_told_once() {
    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(String, usize, usize)>>);
    impl StatusSink for Heard {
        fn status(&self, object: &ObjectKey, status: &Status) {
            self.0.lock().push((object.to_string(), status.warnings.len(), status.lint.len()));
        }
    }
    let heard = Arc::new(Heard::default());
    let told = || std::mem::take(&mut *heard.0.lock());
    let controller = Controller::telling(Options::default(), heard.clone());
    let feed = Feed::announce(controller.clone(), Kind::ALL);
    let policy = |spec: &str| {
        load(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\nspec: {spec}\n"
        ))
    };
    let selected =
        "{selector: {matchLabels: {app: web}}, rules: [{to: [{operation: {ports: ['80'], methods: [GET]}}]}]}";
    let p = "AuthorizationPolicy shop/p".to_owned();
    feed.replace(policy(selected));
    assert_eq!(told(), [(p.clone(), 2, 0)], "its methods, and that nothing is left of it");
    feed.replace(policy(selected));
    assert_eq!(told(), [], "the same again");
    controller.lint();
    assert_eq!(told(), [(p.clone(), 2, 1)], "there is no such pod");
    controller.lint();
    assert_eq!(told(), []);
    feed.replace(policy("{}"));
    assert_eq!(told(), [(p.clone(), 0, 1)], "it is understood now, and was not looked at again");
    controller.lint();
    assert_eq!(told(), [(p, 0, 0)]);
}
