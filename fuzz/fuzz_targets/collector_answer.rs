//! What a collector of spans answers.
#![no_main]

// The file itself: the crate it belongs to does much else.
#[path = "../../crates/telemetry/src/spans/answer.rs"]
mod answer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for refused in [answer::of_protobuf(data), answer::of_json(data), answer::of_grpc(data)].into_iter().flatten() {
        assert!(refused.count > 0 && refused.why.len() <= data.len());
    }
});
