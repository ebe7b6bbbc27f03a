//! Certificates with any byte changed: no panic, and never another name than the one signed.

#![allow(clippy::unwrap_used, reason = "test code")]

use leno_testkit::certs::{Leaf, TestCa};
use leno_tls::fuzzing::peer_certificate;
use proptest::prelude::*;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

const ALICE: &str = "spiffe://cluster.local/ns/a/sa/alice";

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(peer_certificate(&bytes), None);
    }
}

#[test]
fn every_byte_changed_and_every_length() {
    let leaf = TestCa::root("root").issue(&Leaf::uri(ALICE)).leaf_pem;
    let der = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    assert_eq!(peer_certificate(&der).unwrap().to_string(), ALICE);
    for length in 0..der.len() {
        assert_eq!(peer_certificate(&der[..length]), None, "cut at {length}");
    }
    let name = der.windows(ALICE.len()).position(|window| window == ALICE.as_bytes()).unwrap();
    for position in 0..der.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut changed = der.to_vec();
            changed[position] ^= flip;
            if let Some(identity) = peer_certificate(&changed) {
                let inside = (name..name + ALICE.len()).contains(&position);
                assert_eq!(identity.to_string() == ALICE, !inside, "byte {position} ^ {flip:#x}");
            }
        }
    }
}
