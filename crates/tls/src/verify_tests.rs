use rcgen::{CertificateParams, CustomExtension, KeyPair};

use super::*;

const ALICE: &[u8] = b"spiffe://cluster.local/ns/a/sa/alice";
/// Tags of alternative names (RFC 5280 §4.2.1.6).
const DNS: u8 = 2;
const URI: u8 = 6;

/// A certificate with these alternative names, which need not be any.
fn certificate(names: &[(u8, &[u8])]) -> CertificateDer<'static> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let mut content = Vec::new();
    for (tag, name) in names {
        content.extend([0x80 | tag, length(name)]);
        content.extend(*name);
    }
    let sequence = [&[0x30, 0x81, length(&content)][..], &content].concat();
    let mut params = CertificateParams::default();
    params.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], sequence)];
    let key = KeyPair::generate().expect("a key");
    params.self_signed(&key).expect("a certificate").der().clone()
}

/// A name that can't be read is a name: beside a good one it makes two, and a peer could choose which one counts.
#[test]
fn a_name_that_is_not_ascii_counts() {
    let broken = b"spiffe://cluster.local/ns/a/sa/\xff";
    for (names, refused) in [
        (&[(URI, ALICE)][..], None),
        (&[(DNS, b"a.example"), (URI, ALICE)], None),
        (&[(DNS, b"\xff.example"), (URI, ALICE)], None),
        (&[(URI, broken)], Some("not ASCII")),
        (&[(URI, ALICE), (URI, broken)], Some("more than one URI")),
        (&[(URI, broken), (URI, ALICE)], Some("more than one URI")),
        (&[(URI, ALICE), (URI, ALICE)], Some("more than one URI")),
        (&[(DNS, ALICE)], Some("no URI name")),
        (&[(DNS, b"\xff.example")], Some("no URI name")),
    ] {
        match (identity_of(&certificate(names)), refused) {
            (Ok(identity), None) => assert_eq!(identity.to_string().as_bytes(), ALICE),
            (Err(HandshakeError::NotAMeshIdentity(why)), Some(words)) => assert!(why.contains(words), "{why}: {words}"),
            (found, _) => panic!("{names:?}: {found:?}"),
        }
    }
}
