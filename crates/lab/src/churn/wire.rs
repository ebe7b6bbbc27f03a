//! The part of gRPC and protobuf that is needed to read a discovery stream as it arrives. A thousand proxies share the
//! machine with the control plane that they measure, so they must cost little, and none may hold a whole response.

use std::ops::Range;

/// Receives what a stream brings.
pub(super) trait Sink {
    /// One encoded `Resource`.
    fn resource(&mut self, encoded: &[u8]);
    /// The name of a removed resource.
    fn removed(&mut self, name: &[u8]);
    /// A response ends.
    fn end(&mut self, type_url: &[u8], nonce: &[u8]);
}

/// The largest accepted field of a response. No resource is nearly as large.
const MAX_FIELD: usize = 16 << 20;
/// Length of a gRPC message's prefix: a flag and a length.
const HEADER: usize = 5;

/// Takes a stream of `DeltaDiscoveryResponse`s apart.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Bytes of the present message that are still to come. `None` between messages.
    left: Option<usize>,
    /// The beginning of an incomplete field or message.
    begun: Vec<u8>,
    type_url: Vec<u8>,
    nonce: Vec<u8>,
}

impl Reader {
    /// Reads the bytes that have arrived.
    ///
    /// # Errors
    /// When they are no valid stream.
    pub(super) fn take(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        loop {
            if self.left == Some(0) {
                if !self.begun.is_empty() {
                    return Err("a message ends within a field".to_owned());
                }
                sink.end(&self.type_url, &self.nonce);
                self.type_url.clear();
                self.nonce.clear();
                self.left = None;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let used = match self.left {
                None => self.begin(bytes)?,
                Some(left) => self.fields(&bytes[..bytes.len().min(left)], sink)?,
            };
            bytes = &bytes[used..];
        }
    }

    /// Reads bytes of a message's prefix. Returns how many.
    fn begin(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let used = bytes.len().min(HEADER - self.begun.len());
        self.begun.extend_from_slice(&bytes[..used]);
        if let [flag, length @ ..] = &self.begun[..]
            && let Ok(length) = length.try_into()
        {
            if *flag != 0 {
                return Err("a compressed message, which nobody asked for".to_owned());
            }
            self.left = Some(u32::from_be_bytes(length) as usize);
            self.begun.clear();
        }
        Ok(used)
    }

    /// Reads bytes of a message's fields. Returns how many.
    fn fields(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, String> {
        let mut used = 0;
        if !self.begun.is_empty() {
            // The incomplete field: first until its length is known, then all of it.
            loop {
                let wanted = match field(&self.begun)? {
                    Some(found) if found.end() <= self.begun.len() => {
                        let begun = std::mem::take(&mut self.begun);
                        self.field(&begun, &found, sink);
                        self.begun = begun;
                        self.begun.clear();
                        break;
                    }
                    Some(found) => found.end() - self.begun.len(),
                    None => 1,
                };
                let more = wanted.min(bytes.len() - used);
                if more == 0 {
                    break;
                }
                self.begun.extend_from_slice(&bytes[used..used + more]);
                used += more;
            }
        }
        while used < bytes.len() {
            let rest = &bytes[used..];
            match field(rest)? {
                Some(found) if found.end() <= rest.len() => {
                    self.field(rest, &found, sink);
                    used += found.end();
                }
                _ => {
                    self.begun.extend_from_slice(rest);
                    used = bytes.len();
                }
            }
        }
        self.left = self.left.map(|left| left - used);
        Ok(used)
    }

    /// A complete field of a `DeltaDiscoveryResponse`.
    fn field(&mut self, bytes: &[u8], found: &Field, sink: &mut impl Sink) {
        let value = &bytes[found.value.clone()];
        match found.number {
            2 => sink.resource(value),
            4 => self.type_url = value.to_vec(),
            5 => self.nonce = value.to_vec(),
            6 => sink.removed(value),
            _ => {}
        }
    }
}

/// A field of a message.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    number: u64,
    /// The range of its bytes. Empty for a number.
    value: Range<usize>,
}

impl Field {
    fn end(&self) -> usize {
        self.value.end
    }
}

/// The field at the beginning of `bytes`, which may be incomplete. `None` if its length is not known yet.
fn field(bytes: &[u8]) -> Result<Option<Field>, String> {
    let Some((tag, tag_length)) = varint(bytes)? else { return Ok(None) };
    let value = match tag & 7 {
        0 => match varint(&bytes[tag_length..])? {
            Some((_, length)) => tag_length + length..tag_length + length,
            None => return Ok(None),
        },
        1 => tag_length + 8..tag_length + 8,
        2 => match varint(&bytes[tag_length..])? {
            Some((length, _)) if length > MAX_FIELD as u64 => return Err(format!("a field of {length} bytes")),
            Some((length, digits)) => tag_length + digits..tag_length + digits + length as usize,
            None => return Ok(None),
        },
        5 => tag_length + 4..tag_length + 4,
        other => return Err(format!("a field of wire type {other}")),
    };
    Ok(Some(Field { number: tag >> 3, value }))
}

/// A varint and its length. `None` if it is incomplete.
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, String> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index).min(63);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err("a number of more than ten bytes".to_owned()) }
}

/// The last field of that number in a complete message.
pub(super) fn find(message: &[u8], number: u64) -> Option<&[u8]> {
    let mut rest = message;
    let mut found = None;
    while let Ok(Some(next)) = field(rest) {
        let value = rest.get(next.value.clone())?;
        if next.number == number {
            found = Some(value);
        }
        rest = rest.get(next.end()..)?;
    }
    found
}

/// A gRPC message.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = header(message.len()).to_vec();
    out.extend_from_slice(message);
    out
}

/// The prefix of a gRPC message of that length.
pub(super) fn header(length: usize) -> [u8; HEADER] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use leno_proto::discovery::{DeltaDiscoveryResponse, Resource};
    use prost::Message as _;

    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Seen(Vec<String>);

    impl Sink for Seen {
        fn resource(&mut self, encoded: &[u8]) {
            let name = String::from_utf8_lossy(find(encoded, 3).unwrap_or_default()).into_owned();
            let any = find(encoded, 2).unwrap_or_default();
            let body = find(any, 2).unwrap_or_default().len();
            self.0.push(format!("+{name} {body}"));
        }

        fn removed(&mut self, name: &[u8]) {
            self.0.push(format!("-{}", String::from_utf8_lossy(name)));
        }

        fn end(&mut self, type_url: &[u8], nonce: &[u8]) {
            self.0.push(format!("{} {}", String::from_utf8_lossy(type_url), String::from_utf8_lossy(nonce)));
        }
    }

    fn stream() -> Vec<u8> {
        let resource = |name: &str, length: usize| Resource {
            name: name.to_owned(),
            version: "1".to_owned(),
            aliases: vec!["/10.0.0.1".to_owned()],
            resource: Some(prost_types::Any { type_url: "t".to_owned(), value: vec![7; length] }),
        };
        let responses = [
            DeltaDiscoveryResponse {
                resources: vec![resource("a", 300), resource("b", 0)],
                removed_resources: vec!["c".to_owned(), "d".to_owned()],
                type_url: "t".to_owned(),
                nonce: "n1".to_owned(),
                ..Default::default()
            },
            DeltaDiscoveryResponse::default(),
            DeltaDiscoveryResponse { type_url: "u".to_owned(), nonce: "n2".to_owned(), ..Default::default() },
        ];
        responses.iter().flat_map(|response| framed(&response.encode_to_vec())).collect()
    }

    /// The result is the same however the stream is cut.
    #[test]
    fn pieces_of_any_size() {
        let stream = stream();
        for size in 1..=stream.len() {
            let (mut reader, mut seen) = (Reader::default(), Seen::default());
            for piece in stream.chunks(size) {
                reader.take(piece, &mut seen).unwrap();
            }
            assert_eq!(seen.0, ["+a 300", "+b 0", "-c", "-d", "t n1", " ", "u n2"], "{size}");
        }
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        for wrong in [&[1, 0, 0, 0, 0][..], &[0, 0, 0, 0, 2, 0x12, 5], &[0, 0, 0, 0, 2, 0x13, 0]] {
            let mut reader = Reader::default();
            assert!(reader.take(wrong, &mut Seen::default()).is_err(), "{wrong:?}");
        }
    }
}
