use super::*;

/// Two things may have one hash, or one place by it.
#[test]
fn what_differs_is_never_taken_for_another() {
    let mut recent = Recent::default();
    for place in [7, 7 + REMEMBERED as u64] {
        for value in [1, 2, 2, 1] {
            let mut thing = vec![value];
            recent.share(place, &mut thing, |_| {});
            assert_eq!(thing, [value]);
        }
    }
}
