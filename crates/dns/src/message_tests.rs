use super::*;
use proptest::prelude::*;

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 77;
    message.add_query(Query::query(Name::from_ascii(name).expect("name"), kind));
    message.to_vec().expect("encodes")
}

fn question(packet: &[u8]) -> Box<Question> {
    match parse(packet) {
        Parsed::Question(question) => question,
        _ => panic!("not a question"),
    }
}

fn addresses(cname: Option<&str>, addresses: &[IpAddr]) -> Answer {
    Answer { ttl: 30, cname: cname.map(str::to_owned), addresses: addresses.to_vec(), targets: Vec::new() }
}

#[test]
fn targets_are_told_where_they_are_asked_for() {
    let answer = Answer { ttl: 5, targets: vec![("db-0.db".to_owned(), 5432)], ..Answer::default() };
    let told = |kind| {
        let bytes = question(&query("_sql._tcp.db.", kind)).answer(&answer, true);
        Message::from_vec(&bytes).expect("sound").answers
    };
    assert!(told(RecordType::A).is_empty());
    let records = told(RecordType::SRV);
    assert!(matches!(&records[..], [record] if record.ttl == 5
        && matches!(&record.data, RData::SRV(srv) if srv.port == 5432 && srv.target.to_ascii() == "db-0.db.")));
}

#[test]
fn an_answer_carries_the_family_asked_for_and_the_alias() {
    let packet = query("Web.default.", RecordType::A);
    let q = question(&packet);
    assert_eq!(q.name(), "web.default");
    let ips: Vec<IpAddr> = ["10.0.0.1", "fd00::1", "10.0.0.2"].map(|ip| ip.parse().expect("ip")).to_vec();
    let bytes = q.answer(&addresses(Some("web.default.svc.cluster.local"), &ips), true);
    let reply = Message::from_vec(&bytes).expect("sound");
    assert!(answers(&packet, &bytes));
    assert_eq!(reply.answers.len(), 3);
    assert!(reply.metadata.authoritative && reply.metadata.recursion_available);
    assert_eq!(reply.answers[1].name.to_ascii(), "web.default.svc.cluster.local.");
}

#[test]
fn what_does_not_fit_udp_is_truncated_and_fits_tcp() {
    let q = question(&query("big.default.", RecordType::A));
    let ips: Vec<IpAddr> = (0..200u8).map(|i| IpAddr::from([10, 0, 0, i])).collect();
    let udp = Message::from_vec(&q.answer(&addresses(None, &ips), true)).expect("sound");
    assert!(udp.metadata.truncation && udp.answers.is_empty());
    assert_eq!(Message::from_vec(&q.answer(&addresses(None, &ips), false)).expect("sound").answers.len(), 200);
}

#[test]
fn responses_and_noise_are_not_answered_and_bad_opcodes_are() {
    let mut response = Message::response(1, OpCode::Query);
    assert!(matches!(parse(&response.to_vec().expect("encodes")), Parsed::Garbage));
    assert!(matches!(parse(b""), Parsed::Garbage));
    response = Message::new(1, MessageType::Query, OpCode::Notify);
    let Parsed::Refusal(bytes) = parse(&response.to_vec().expect("encodes")) else { panic!("must be refused") };
    assert_eq!(Message::from_vec(&bytes).expect("sound").metadata.response_code, ResponseCode::NotImp);
}

#[test]
fn a_reply_to_another_question_is_no_answer() {
    let mine = query("a.", RecordType::A);
    let other = question(&query("b.", RecordType::A)).answer(&Answer::default(), true);
    assert!(!answers(&mine, &other));
}

#[test]
fn a_question_with_a_load_of_records_is_refused_unread() {
    let mut packet = query(&"a.".repeat(120), RecordType::A);
    // Each has the question's name, by a pointer to it.
    let record = [0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1, 0];
    let with = |packet: &mut Vec<u8>, records: u16| {
        packet[10..12].copy_from_slice(&records.to_be_bytes());
        packet.extend(record.repeat(records.into()));
    };
    let mut few = packet.clone();
    with(&mut few, 2);
    assert!(matches!(parse(&few), Parsed::Question(_)));
    with(&mut packet, 5000);
    let Parsed::Refusal(bytes) = parse(&packet) else { panic!("must be refused") };
    let refusal = Message::from_vec(&bytes).expect("sound");
    assert_eq!((refusal.metadata.id, refusal.metadata.response_code), (77, ResponseCode::FormErr));
    // A resolver's answer may well have many.
    assert!(Message::from_vec(&packet).is_ok(), "nothing else is wrong with it");
    packet[2] |= 0x80;
    assert!(answers(&few, &packet));
}

proptest! {
    #[test]
    fn no_packet_breaks_the_parser(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Parsed::Question(q) = parse(&packet) {
            let _ = q.answer(&addresses(Some(&q.name()), &["10.0.0.1".parse().expect("ip")]), true);
        }
    }
}
