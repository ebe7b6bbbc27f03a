use std::time::Duration;

use leno_objects::ObjectKey;

use super::*;
use crate::testing::load;
use crate::translate::Options;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web-1, namespace: shop}\nspec: {containers: [{name: c}]}\nstatus: {podIP: 10.0.0.1}\n";
const NONE: [Object; 0] = [];

fn is_ready(controller: &Controller) -> bool {
    controller.publish();
    controller.generation() > 0
}

/// An API server lists one kind after the other, and a policy that is not there yet lets everybody in.
#[test]
fn nothing_is_published_before_every_kind_is_complete() {
    let controller = Controller::new(Options::default());
    assert!(!is_ready(&controller), "nobody said what is going to come");
    let feed = Feed::announce(controller.clone(), &[Kind::Pod, Kind::Service]);
    let policies = Feed::announce(controller.clone(), &[Kind::AuthorizationPolicy]);
    feed.list(Kind::Pod, load(POD));
    feed.apply([Change::Remove(ObjectKey::new(Kind::Service, "shop", "gone"))]);
    assert!(!is_ready(&controller), "services are still to come");
    feed.complete(&[Kind::Service]);
    assert!(!is_ready(&controller), "the other feed's are still to come");
    assert_eq!(controller.mesh().borrow().workloads().count(), 0);
    policies.replace(NONE);
    assert!(is_ready(&controller));
    assert_eq!(controller.mesh().borrow().workloads().count(), 1);
    // A later list takes its time, too, and what there is stays.
    feed.list(Kind::Service, NONE);
    assert_eq!(controller.store().len(), 1);
    feed.list(Kind::Pod, NONE);
    assert!(is_ready(&controller));
    assert_eq!(controller.mesh().borrow().workloads().count(), 0);
}

/// Each brings what it has announced, and takes nothing away from the other.
#[test]
fn two_feeds_have_kinds_of_their_own() {
    let controller = Controller::new(Options::default());
    let pods = Feed::announce(controller.clone(), &[Kind::Pod]);
    let others = Feed::announce(controller.clone(), &[Kind::Namespace]);
    pods.replace(load(POD));
    others.replace(load(POD));
    assert_eq!(controller.store().len(), 1, "a pod is not the other's to bring");
    others.replace(NONE);
    assert_eq!(controller.store().len(), 1, "nor to take away");
}

#[tokio::test(start_paused = true)]
async fn ready_once_the_feed_has_spoken_even_to_say_nothing() {
    let controller = Controller::new(Options::default());
    let publisher = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run().await }
    });
    let feed = Feed::announce(controller.clone(), Kind::ALL);
    feed.apply([]);
    assert!(tokio::time::timeout(Duration::from_secs(2), controller.ready()).await.is_err());
    feed.replace(NONE);
    controller.ready().await;
    assert_eq!(controller.generation(), 1);
    publisher.abort();
}
