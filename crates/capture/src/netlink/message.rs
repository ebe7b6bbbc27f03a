//! Writing and reading netlink messages (RFC 3549; attribute layout: `linux/netlink.h`).

/// `struct nlmsghdr`: length, type, flags, sequence, port.
pub(crate) const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const NLA_F_NESTED: u16 = 1 << 15;
const NLA_TYPE_MASK: u16 = !(NLA_F_NESTED | 1 << 14);

/// One request under construction.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Starts a message whose fixed part (`ifinfomsg`, `rtmsg`, `nfgenmsg`...) is `fixed`.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends raw bytes, for fixed structures inside an attribute.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute.
    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // Callers pass names and addresses whose length they have checked; 64 KiB is never near.
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a string with the terminating zero that the kernel expects.
    pub(crate) fn string(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends a number in the machine's order, as the routing subsystem wants it.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a number in network order, as nf_tables wants it.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Appends an attribute made of attributes.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Fills in length and sequence number and hands out the bytes, padded so that another message may follow.
    pub(crate) fn finish(mut self, sequence: u32, extra_flags: u16) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | extra_flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    /// The attributes written so far after a fixed part of `fixed` bytes.
    pub(crate) fn attributes(&self, fixed: usize) -> Attributes<'_> {
        Attributes(self.bytes.get(HEADER + fixed..).unwrap_or_default())
    }
}

/// A received message: type, flags, sequence and everything after the header.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Splits a datagram into messages; stops at the first one that doesn't fit.
pub(crate) fn split(mut datagram: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        if length < HEADER || length > datagram.len() {
            return None;
        }
        let message = &datagram[..length];
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Received {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            body: &message[HEADER..],
        })
    })
}

/// An iterator over attributes: type without its flag bits, and payload. Stops at the first malformed one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes behind a fixed part.
    pub(crate) fn after(body: &'a [u8], fixed: usize) -> Self {
        Self(body.get(fixed..).unwrap_or_default())
    }

    /// The payload of the first attribute of this type.
    pub(crate) fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter().find_map(|(k, value)| (k == kind).then_some(value))
    }

    /// The attribute as a string, without the terminating zero.
    pub(crate) fn string(self, kind: u16) -> Option<String> {
        let value = self.find(kind)?;
        let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }

    /// The attributes inside the attribute.
    pub(crate) fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.find(kind).map(Attributes)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & NLA_TYPE_MASK;
        if length < ATTRIBUTE_HEADER {
            return None;
        }
        let value = self.0.get(ATTRIBUTE_HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn be32_at(bytes: &[u8], at: usize) -> Option<u32> {
    u32_at(bytes, at).map(u32::from_be)
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
