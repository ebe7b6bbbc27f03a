use leno_proto::discovery::DeltaDiscoveryResponse;
use proptest::prelude::*;
use prost::Message;

use super::*;

proptest! {
    /// This crate writes the same bytes as the protobuf library, and reads back what was written.
    #[test]
    fn the_library_writes_the_same(
        type_url in "[a-z./]{1,40}",
        name in "[a-z/]{1,200}",
        body in prop::collection::vec(any::<u8>(), 1..300),
        aliases in prop::collection::vec("[a-z/0-9.]{1,20}", 0..4),
        reach in prop::option::of(0..3u8),
    ) {
        let mut resource = Resource::new(body.clone()).with_aliases(aliases.clone());
        if let Some(reach) = reach {
            resource = resource.with_reach(reach);
        }
        let published = Published::new(&type_url, name.as_str().into(), &resource);
        prop_assert_eq!(published.version(), resource.version());
        prop_assert_eq!(published.body(), &*body);
        prop_assert_eq!(published.aliases(), aliases.clone());
        prop_assert_eq!(published.reach(), reach);
        let response = DeltaDiscoveryResponse {
            resources: vec![leno_proto::discovery::Resource {
                version: resource.version().to_owned(),
                resource: Some(prost_types::Any { type_url, value: body }),
                name,
                aliases,
            }],
            ..Default::default()
        };
        prop_assert_eq!(published.field(), response.encode_to_vec());
    }

    #[test]
    fn arbitrary_bytes_are_walked_as_by_the_library(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut names = Vec::new();
        let mut sound = true;
        for field in Fields(&bytes) {
            match field {
                Ok((6, name)) => names.push(String::from_utf8_lossy(name).into_owned()),
                Ok(_) => {}
                Err(_) => sound = false,
            }
        }
        if let Ok(response) = DeltaDiscoveryResponse::decode(&*bytes) {
            // Groups, which nobody sends, are only known to the library.
            if sound {
                prop_assert_eq!(names, response.removed_resources);
            }
        }
    }
}
