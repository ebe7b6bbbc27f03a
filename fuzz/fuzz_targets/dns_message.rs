//! DNS packets, from any program in a pod and from any resolver.
#![no_main]

use leno_dns::{Answer, Parsed, answers, parse};

libfuzzer_sys::fuzz_target!(|packet: &[u8]| {
    if let Parsed::Question(question) = parse(packet) {
        let addresses = vec!["10.0.0.1".parse().expect("an address")];
        let targets = vec![("c.d".to_owned(), 80)];
        let answer = Answer { ttl: 5, cname: Some("a.b".to_owned()), addresses, targets };
        let reply = question.answer(&answer, true);
        assert!(reply.is_empty() || reply.len() <= 4096);
    }
    let _ = answers(packet, packet);
});
