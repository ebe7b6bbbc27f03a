use leno_proto::discovery::DeltaDiscoveryRequest;
use proptest::prelude::*;

use super::*;

fn request() -> impl Strategy<Value = DeltaDiscoveryRequest> {
    let name = || "[a-e*]{0,2}";
    let names = || prop::collection::vec(name(), 0..3);
    (
        name(),
        names(),
        names(),
        prop::collection::btree_map("[a-z]{0,3}", "[0-9]{0,3}", 0..8),
        name(),
        any::<[bool; 2]>(),
    )
        .prop_map(|(type_url, subscribe, unsubscribe, held, nonce, [node, error])| DeltaDiscoveryRequest {
            node: node.then(|| Node { id: "me".to_owned(), ..Node::default() }),
            type_url,
            resource_names_subscribe: subscribe,
            resource_names_unsubscribe: unsubscribe,
            initial_resource_versions: held,
            response_nonce: nonce,
            error_detail: error.then(|| Status { message: "no".to_owned(), ..Status::default() }),
        })
}

fn assert_same(found: &Request, wanted: &DeltaDiscoveryRequest) {
    assert_eq!(found.node(), wanted.node.as_ref());
    assert_eq!(found.type_url(), wanted.type_url);
    assert_eq!(found.nonce(), wanted.response_nonce);
    assert_eq!(found.error(), wanted.error_detail.as_ref().map(|error| &*error.message));
    assert_eq!(found.subscribe(), wanted.resource_names_subscribe);
    assert_eq!(found.unsubscribe(), wanted.resource_names_unsubscribe);
    let held: Vec<_> = wanted.initial_resource_versions.iter().map(|(n, v)| (&**n, &**v)).collect();
    assert_eq!(found.held().by_name(), held);
    assert_eq!(found.held().is_empty(), held.is_empty());
}

/// The library's decoder of maps does not look at the wire type: it would take these for one entry without name and version.
#[test]
fn what_is_no_list_by_its_tag_is_not_read_as_one() {
    let number = Request::decode(Bytes::from_static(&[5 << 3, 0])).unwrap();
    assert!(number.held().is_empty() && number.held().by_name().is_empty());
    let list = Request::decode(Bytes::from_static(&[5 << 3 | 2, 0])).unwrap();
    assert_eq!(list.held().by_name(), [("", "")]);
}

proptest! {
    #[test]
    fn as_the_library_decodes(first in request(), second in request()) {
        // Two messages in one are one message; the last version of a name counts.
        for bytes in [first.encode_to_vec(), [first.encode_to_vec(), second.encode_to_vec()].concat()] {
            let wanted = DeltaDiscoveryRequest::decode(&*bytes).unwrap();
            assert_same(&Request::decode(bytes.into()).unwrap(), &wanted);
        }
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x2a), Just(0x0a), 0..6u8], 0..40)) {
        match (DeltaDiscoveryRequest::decode(&*bytes), Request::decode(bytes.clone().into())) {
            // A list that is a number by its tag is skipped, as by protobuf's own decoders. The library reads it all the same.
            (Ok(_), Ok(_)) if bytes.iter().any(|byte| (byte & 0x7f) >> 3 == 5 && byte & 7 != 2) => {}
            (Ok(wanted), Ok(found)) => assert_same(&found, &wanted),
            (Err(_), Err(_)) => {}
            // Of wrong kinds and groups in a pair, the library knows more.
            (Err(_), Ok(found)) => prop_assert!(!found.held().is_empty()),
            (Ok(_), Err(error)) => prop_assert!(bytes.iter().any(|byte| byte & 7 == 3), "{error}"),
        }
    }
}
