//! Resources from a control plane: decoding, conversion, and back without a difference. What is
//! refused is closed.
#![no_main]

use leno_proto::{
    Resource, address_from_proto, address_stand_in, authorization_from_proto, authorization_to_proto, policy_stand_in,
    request_defaults_from_proto, request_defaults_to_proto, security, service_to_address, waypoint, workload,
    workload_to_address,
};
use prost::Message;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    if let Ok(address) = workload::Address::decode(body) {
        let closed = address_stand_in("namespace/name", address.clone(), "why");
        let of_a_kind = address.r#type.is_some();
        match closed {
            Some(Resource::Workload(closed)) => assert!(closed.not_understood.is_some()),
            Some(Resource::Service(closed)) => assert!(closed.not_understood.is_some()),
            None => assert!(!of_a_kind),
        }
        match address_from_proto(address) {
            Ok(Resource::Workload(workload)) => {
                assert_eq!(address_from_proto(workload_to_address(&workload)), Ok(Resource::Workload(workload)));
            }
            Ok(Resource::Service(service)) => {
                assert_eq!(address_from_proto(service_to_address(&service)), Ok(Resource::Service(service)));
            }
            Err(_) => {}
        }
    }
    if let Ok(policy) = security::Authorization::decode(body) {
        assert!(policy_stand_in("namespace/name", Some(&policy), "why").is_some());
        if let Ok(policy) = authorization_from_proto(policy) {
            assert_eq!(authorization_from_proto(authorization_to_proto(&policy)), Ok(policy));
        }
    }
    if let Ok(defaults) = waypoint::RequestDefaults::decode(body) {
        if let Ok(defaults) = request_defaults_from_proto(defaults) {
            assert_eq!(request_defaults_from_proto(request_defaults_to_proto(&defaults)), Ok(defaults));
        }
    }
});
