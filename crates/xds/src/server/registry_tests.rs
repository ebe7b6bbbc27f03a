use std::pin::pin;

use futures_util::FutureExt as _;

use super::*;

fn enter(registry: &Arc<Registry>, id: &str) -> Entry {
    let who = Who { id: id.to_owned(), node: None, account: "leno-system/leno-node".to_owned(), address: None };
    registry.enter(who)
}

/// The proxy has answered this snapshot.
fn answers(entry: &Entry, generation: u64) {
    entry.proxy.progress.lock().generation = Some(generation);
    entry.registry.no_longer_behind(entry.key, Some(generation));
}

#[test]
fn who_waits_is_told_when_the_last_of_those_connected_has_answered_or_is_gone() {
    let registry = Arc::new(Registry::default());
    assert!(registry.answered(7).now_or_never().is_some(), "nobody is connected");
    let (first, second) = (enter(&registry, "first"), enter(&registry, "second"));
    answers(&first, 7);
    let mut waits = pin!(registry.answered(7));
    assert!(waits.as_mut().now_or_never().is_none());
    // A proxy that connects meanwhile gets the latest anyway; one that comes back is awaited again.
    let _third = enter(&registry, "third");
    let again = enter(&registry, "second");
    answers(&second, 6);
    assert!(waits.as_mut().now_or_never().is_none(), "that was an older one");
    drop(second);
    assert!(waits.as_mut().now_or_never().is_none(), "it is back");
    answers(&again, 8);
    assert!(waits.now_or_never().is_some());
    assert!(registry.waiting.lock().is_empty());
    drop(first);
    // A caller that gives up leaves nothing in the list.
    assert!(registry.answered(9).now_or_never().is_none());
    assert!(registry.waiting.lock().is_empty());
}
