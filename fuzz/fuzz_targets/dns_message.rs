//! DNS packets, from any program in a pod and from any resolver.
#![no_main]

use leno_node::dns_message::{Parsed, answers, parse};

libfuzzer_sys::fuzz_target!(|packet: &[u8]| {
    if let Parsed::Question(question) = parse(packet) {
        let reply = question.answer(Some("a.b"), &["10.0.0.1".parse().expect("an address")], true);
        assert!(reply.is_empty() || reply.len() <= 4096);
    }
    let _ = answers(packet, packet);
});
