//! What goes by in a body: its bytes, and the gRPC messages in it.

use std::sync::atomic::AtomicU64;

/// What the body of a request has carried so far. Its reader is another task than that of the response.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) bytes: AtomicU64,
    pub(crate) messages: AtomicU64,
}

/// Counts the messages of a gRPC body: each has a flag, its length in four bytes, and so many bytes (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Bytes of a message's head that have come.
    head: usize,
    length: u32,
    /// Bytes of the message that are still to come.
    left: u64,
}

const HEAD: usize = 5;

impl Messages {
    /// How many messages begin in these bytes. One begins when its head is complete.
    pub(crate) fn begun(&mut self, mut bytes: &[u8]) -> u64 {
        let mut begun = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            if self.head > 0 {
                self.length = self.length << 8 | u32::from(bytes[0]);
            }
            self.head += 1;
            bytes = &bytes[1..];
            if self.head == HEAD {
                begun += 1;
                self.left = self.length.into();
                (self.head, self.length) = (0, 0);
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_they_are_cut() {
        let mut body = Vec::new();
        for length in [0_u32, 1, 300, 70_000, 0, 5] {
            body.push(0);
            body.extend(length.to_be_bytes());
            body.resize(body.len() + length as usize, 0xff);
        }
        for size in [1, 2, 3, 5, 7, 64, 16_384, body.len()] {
            let mut messages = Messages::default();
            assert_eq!(body.chunks(size).map(|chunk| messages.begun(chunk)).sum::<u64>(), 6, "{size}");
        }
    }
}
