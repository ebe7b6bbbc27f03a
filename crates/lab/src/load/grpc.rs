//! The lab's unary gRPC call: its messages, and their frames (gRPC over HTTP/2, "Length-Prefixed-Message").

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;

/// The path of the call.
pub(super) const PATH: &str = "/leno.lab.v1.Load/Fetch";
pub(super) const CONTENT_TYPE: &str = "application/grpc";
pub(super) const STATUS: &str = "grpc-status";
/// A frame's head: one byte that says whether it is compressed, and four of length.
const HEAD: usize = 5;

/// The request.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FetchRequest {
    /// The length of the wanted body, bytes. 0 for the usual one.
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// The answer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FetchResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
}

/// A message in its frame.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEAD + length);
    frame.put_u8(0);
    // The lab's messages are far below 4 GiB.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put(message.encode_to_vec().as_slice());
    frame.freeze()
}

/// The only message of a call that is over.
pub(super) fn unframe<M: Message + Default>(mut bytes: Bytes) -> Result<M, &'static str> {
    if bytes.len() < HEAD {
        return Err("gRPC: no message");
    }
    if bytes.get_u8() != 0 {
        return Err("gRPC: a compressed message, which nobody asked for");
    }
    let length = bytes.get_u32();
    if length as usize != bytes.len() {
        return Err("gRPC: not one whole message");
    }
    M::decode(bytes).map_err(|_| "gRPC: not the expected message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whole_message() {
        let framed = frame(&FetchRequest { size: 300 });
        assert_eq!(&framed[..], [0, 0, 0, 0, 3, 0x08, 0xac, 0x02], "field 1, varint 300");
        assert_eq!(unframe::<FetchRequest>(framed.clone()).unwrap().size, 300);
        let twice = Bytes::from([framed.clone(), framed.clone()].concat());
        let compressed = Bytes::from([&[1], &framed[1..]].concat());
        for wrong in [Bytes::new(), framed.slice(..4), framed.slice(..7), twice, compressed] {
            assert!(unframe::<FetchRequest>(wrong).is_err());
        }
        let body = Bytes::from(vec![b'x'; 1 << 20]);
        assert_eq!(unframe::<FetchResponse>(frame(&FetchResponse { body: body.clone() })).unwrap().body, body);
    }
}
