//! A DNS question and its answer.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, rdata};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// Largest UDP payload offered to a client that uses EDNS (RFC 6891), bytes. Above the usual MTU, answers would be
/// fragmented.
const MAX_UDP_PAYLOAD: u16 = 1232;

/// Additional records that a question may carry: EDNS and a signature, with some room. Reading a message costs time for
/// each record, and a packet has room for five thousand. The thread that reads it also carries other pods' connections.
const MAX_EXTRA_RECORDS: u32 = 8;

/// A message that asks a question.
pub struct Question {
    message: Message,
    query: Query,
}

/// The content of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Time to live, seconds.
    pub ttl: u32,
    /// The canonical name, if the name asked for is an alias. All other records then belong to it.
    pub cname: Option<String>,
    /// Addresses. Those of a family that was not asked for are left out.
    pub addresses: Vec<IpAddr>,
    /// Host names and ports, for SRV questions.
    pub targets: Vec<(String, u16)>,
}

/// The result of reading a packet.
pub enum Parsed {
    /// A question.
    Question(Box<Question>),
    /// Not a question, but valid enough for an error response: its bytes.
    Refusal(Vec<u8>),
    /// Not worth a response.
    Garbage,
}

/// Reads a client's packet.
pub fn parse(packet: &[u8]) -> Parsed {
    let message = if is_bounded(packet) { Message::from_vec(packet).ok() } else { None };
    let Some(message) = message else {
        // A FORMERR response needs only the id. Anything shorter than a header is noise.
        return match packet {
            [high, low, flags, ..] if packet.len() >= 12 && flags & 0x80 == 0 => {
                let id = u16::from_be_bytes([*high, *low]);
                refusal(&Message::error_msg(id, OpCode::Query, ResponseCode::FormErr))
            }
            _ => Parsed::Garbage,
        };
    };
    if message.metadata.message_type == MessageType::Response {
        // If servers answered responses, two of them could talk to each other for ever.
        return Parsed::Garbage;
    }
    let error = |code| {
        let mut reply = Message::error_msg(message.metadata.id, message.metadata.op_code, code);
        reply.queries = message.queries.clone();
        refusal(&reply)
    };
    if message.metadata.op_code != OpCode::Query {
        return error(ResponseCode::NotImp);
    }
    match message.queries.as_slice() {
        [query] if query.query_class() == DNSClass::IN => {
            let query = query.clone();
            Parsed::Question(Box::new(Question { message, query }))
        }
        [_] => error(ResponseCode::NotImp),
        _ => error(ResponseCode::FormErr),
    }
}

fn refusal(message: &Message) -> Parsed {
    message.to_vec().map_or(Parsed::Garbage, Parsed::Refusal)
}

impl Question {
    /// The name asked for: lower case (RFC 4343), without its final dot.
    pub fn name(&self) -> String {
        let name = self.query.name().to_lowercase().to_ascii();
        name.strip_suffix('.').unwrap_or(&name).to_owned()
    }

    /// The record type asked for.
    pub fn record_type(&self) -> RecordType {
        self.query.query_type()
    }

    /// Whether the question asks for addresses of `ip`'s family.
    pub fn wants(&self, ip: &IpAddr) -> bool {
        matches!((self.record_type(), ip), (RecordType::A, IpAddr::V4(_)) | (RecordType::AAAA, IpAddr::V6(_)))
    }

    /// An authoritative answer. If `udp` is set and the answer is longer than the client's UDP payload, it is cut and
    /// the truncation bit set.
    pub fn answer(&self, answer: &Answer, udp: bool) -> Vec<u8> {
        let mut reply = self.reply(ResponseCode::NoError);
        reply.metadata.authoritative = true;
        let mut owner = self.query.name().clone();
        let absolute = |name: &str| Name::from_ascii(format!("{name}.")).ok();
        if let Some(target) = answer.cname.as_deref().and_then(absolute) {
            reply.add_answer(Record::from_rdata(owner, answer.ttl, RData::CNAME(rdata::CNAME(target.clone()))));
            owner = target;
        }
        for address in answer.addresses.iter().filter(|ip| self.wants(ip)) {
            let data = match address {
                IpAddr::V4(v4) => RData::A(rdata::A(*v4)),
                IpAddr::V6(v6) => RData::AAAA(rdata::AAAA(*v6)),
            };
            reply.add_answer(Record::from_rdata(owner.clone(), answer.ttl, data));
        }
        if self.record_type() == RecordType::SRV {
            for (target, port) in answer.targets.iter().filter_map(|(name, port)| Some((absolute(name)?, *port))) {
                let data = RData::SRV(rdata::SRV::new(0, 100, port, target));
                reply.add_answer(Record::from_rdata(owner.clone(), answer.ttl, data));
            }
        }
        self.encode(&reply, udp)
    }

    /// An answer without records, with a response code.
    pub fn error(&self, code: ResponseCode) -> Vec<u8> {
        self.encode(&self.reply(code), true)
    }

    fn reply(&self, code: ResponseCode) -> Message {
        let mut reply = Message::error_msg(self.message.metadata.id, OpCode::Query, code);
        reply.metadata.recursion_desired = self.message.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.queries = vec![self.query.clone()];
        if self.message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_UDP_PAYLOAD);
            reply.set_edns(edns);
        }
        reply
    }

    fn encode(&self, reply: &Message, udp: bool) -> Vec<u8> {
        let limit = self.message.edns.as_ref().map_or(512, |edns| edns.max_payload().clamp(512, MAX_UDP_PAYLOAD));
        match reply.to_vec() {
            Ok(bytes) if !udp || bytes.len() <= usize::from(limit) => bytes,
            Ok(_) => reply.truncate().to_vec().unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}

/// Whether the header announces no more records than a question may have.
fn is_bounded(packet: &[u8]) -> bool {
    let header = Header::read(&mut BinDecoder::new(packet));
    header.is_ok_and(|Header { counts, .. }| {
        let extra = u32::from(counts.answers) + u32::from(counts.authorities) + u32::from(counts.additionals);
        counts.queries <= 1 && extra <= MAX_EXTRA_RECORDS
    })
}

/// Whether `reply` answers `query`: same id and same question (RFC 5452 §4). Anything else is forged or late. The
/// client reads the rest of the reply.
pub fn answers(query: &[u8], reply: &[u8]) -> bool {
    let (Some((query, asked)), Some((reply, answered))) = (head(query), head(reply)) else { return false };
    reply.metadata.message_type == MessageType::Response && query.metadata.id == reply.metadata.id && asked == answered
}

/// The header and the question, if there is exactly one question.
fn head(packet: &[u8]) -> Option<(Header, Query)> {
    let mut decoder = BinDecoder::new(packet);
    let header = Header::read(&mut decoder).ok()?;
    if header.counts.queries != 1 {
        return None;
    }
    Some((header, Query::read(&mut decoder).ok()?))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
