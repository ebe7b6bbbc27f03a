use super::*;
use crate::{Resource, Resources};

const TYPE: &str = "type";

fn published(changed: impl IntoIterator<Item = usize>) -> Arc<Catalogue> {
    let mut resources = Resources::default();
    for n in 0..2000 {
        resources.upsert(TYPE, format!("{n:05}"), Resource::new("x".repeat(100)));
    }
    for n in changed {
        resources.upsert(TYPE, format!("{n:05}"), Resource::new("changed"));
    }
    resources.of(TYPE).expect("some").clone()
}

/// A thousand proxies that lack the same get one difference, whose bytes are encoded once.
#[test]
fn found_once_and_written_once() {
    let (old, new) = (published([]), published([3, 5]));
    let deltas = Deltas::default();
    let first = deltas.between(&old, &new);
    assert_eq!(first.upserts.len(), 2);
    let bytes = first.written(Part::All).expect("short").clone();
    for _ in 0..1000 {
        let again = deltas.between(&old, &new);
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(again.written(Part::All).expect("short").as_ptr(), bytes.as_ptr());
    }
    assert_eq!(deltas.remembered.lock().len(), 1);
}

/// Differences that nobody can ask for any more are forgotten, and the number of those for slow proxies is bounded.
#[test]
fn remembers_few() {
    let deltas = Deltas::default();
    let latest = published([1]);
    drop((deltas.between(&published([]), &latest), deltas.between(&latest, &published([]))));
    let mut kept = vec![published([2])];
    for n in 3..50 {
        kept.push(published([n]));
        assert_eq!(deltas.between(&kept[0], &kept[kept.len() - 1]).upserts.len(), 2);
        assert!(deltas.remembered.lock().len() <= REMEMBERED);
    }
    assert!(deltas.remembered.lock().iter().all(|one| one.from.strong_count() > 0));
}

/// A long difference is sent in pieces, with the same bytes.
#[test]
fn long_ones_are_written_piece_by_piece() {
    let mut delta = Delta::between(&Catalogue::default(), &published([]));
    for n in 0..30_000 {
        delta.removals.push(Removal { name: format!("gone/{n}").into(), old: None });
    }
    for part in [Part::All, Part::Early, Part::Late] {
        assert!(delta.length(part) > KEPT && delta.written(part).is_none());
        let (mut at, mut length, mut pieces) = (0, 0, 0);
        while let Some(piece) = delta.piece(part, &mut at) {
            assert!(piece.len() < PIECE + 1000);
            length += piece.len();
            pieces += 1;
        }
        assert_eq!(length, delta.length(part));
        assert!(pieces > 1);
    }
}
