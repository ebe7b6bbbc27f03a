//! Resources from a control plane: decoding, conversion, and back without a difference.
#![no_main]

use leno_proto::{Resource, address_from_proto, authorization_from_proto, security, workload};
use prost::Message;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    if let Ok(address) = workload::Address::decode(body)
        && let Ok(Resource::Workload(workload)) = address_from_proto(address)
    {
        let again = leno_proto::workload_to_address(&workload);
        assert_eq!(address_from_proto(again), Ok(Resource::Workload(workload)));
    }
    if let Ok(policy) = security::Authorization::decode(body) {
        let _ = authorization_from_proto(policy);
    }
});
