//! Packets of the node agent.
#![no_main]

use prost::Message;

libfuzzer_sys::fuzz_target!(|packet: &[u8]| {
    let _ = leno_proto::zds::WorkloadRequest::decode(packet);
    let _ = leno_proto::zds::WorkloadResponse::decode(packet);
    let _ = leno_proto::zds::ZdsHello::decode(packet);
});
