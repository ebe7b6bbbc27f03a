use proptest::prelude::*;

use super::*;

#[test]
fn attributes_are_padded_and_nested() {
    let mut message = Message::new(16, 1, &[7; 4]);
    message.attribute(1, b"abc").nested(2, |inner| {
        inner.u32(3, 9).string(4, "x");
    });
    let bytes = message.finish(5, 4);
    assert_eq!(bytes.len() % 4, 0);
    let received: Vec<_> = split(&bytes).collect();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].kind, received[0].flags, received[0].sequence), (16, 5, 5));
    let attributes = Attributes::after(received[0].body, 4);
    assert_eq!(attributes.find(1), Some(&b"abc"[..]));
    let inner = attributes.nested(2).unwrap();
    assert_eq!(inner.find(3), Some(&9u32.to_ne_bytes()[..]));
    assert_eq!(inner.string(4).unwrap(), "x");
    assert_eq!(attributes.find(9), None);
}

proptest! {
    /// Whatever bytes arrive, reading them ends and never panics.
    #[test]
    fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        for message in split(&bytes) {
            let attributes = Attributes::after(message.body, 4);
            for (kind, value) in attributes {
                prop_assert!(kind < 1 << 14);
                prop_assert!(Attributes(value).count() <= value.len() / 4);
            }
        }
        prop_assert!(Attributes(&bytes).count() <= bytes.len() / 4);
    }

    #[test]
    fn what_is_written_is_read(values in proptest::collection::vec((1u16..0x3fff, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
        let mut message = Message::new(1, 0, &[0; 8]);
        for (kind, value) in &values {
            message.attribute(*kind, value);
        }
        let read: Vec<_> = message.attributes(8).map(|(k, v)| (k, v.to_vec())).collect();
        prop_assert_eq!(read, values);
    }
}
