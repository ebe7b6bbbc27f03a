//! How many fields a compressed header block of HTTP/2 has (RFC 7541 §6), without what they say.
//!
//! Each may be one byte, and costs the library a quarter of a microsecond: it is copied out of a table. So the length of a
//! block says little of what it costs.

/// Follows one header block, however it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fields {
    /// A field begins.
    #[default]
    Begin,
    /// The index of a name or of a field goes on. So many strings come after it.
    Index(u8),
    /// The length of a string begins, the first of so many.
    Length(u8),
    /// The length of a string goes on.
    LengthMore { strings: u8, length: u32, shift: u8 },
    /// So many bytes of a string come.
    String { strings: u8, left: u32 },
}

/// A length with more bits than this is one that no block has.
const BITS: u8 = 28;

impl Fields {
    /// The fields that begin in these bytes of the block.
    pub(crate) fn begun(&mut self, bytes: &[u8]) -> u32 {
        let (mut begun, mut at) = (0, 0);
        while let Some(&byte) = bytes.get(at) {
            if let Self::String { strings, left } = *self {
                let some = (bytes.len() - at).min(left as usize);
                at += some;
                *self = Self::after_some(strings, left - some as u32);
                continue;
            }
            at += 1;
            begun += u32::from(*self == Self::Begin);
            *self = self.after(byte);
        }
        begun
    }

    /// What comes after a byte that belongs to no string.
    fn after(self, byte: u8) -> Self {
        match self {
            Self::Begin => {
                // The forms of §6.1, §6.2.1, §6.3, and §6.2.2 with §6.2.3: bits of the index, and whether strings follow.
                let (most, literal) = match byte {
                    0x80.. => (0x7f, false),
                    0x40.. => (0x3f, true),
                    0x20.. => (0x1f, false),
                    _ => (0x0f, true),
                };
                let index = byte & most;
                let strings = if literal { 1 + u8::from(index == 0) } else { 0 };
                if index == most { Self::Index(strings) } else { Self::next(strings) }
            }
            Self::Index(strings) if byte & 0x80 == 0 => Self::next(strings),
            Self::Index(_) | Self::String { .. } => self,
            Self::Length(strings) => match u32::from(byte & 0x7f) {
                0x7f => Self::LengthMore { strings, length: 0x7f, shift: 0 },
                length => Self::after_some(strings, length),
            },
            Self::LengthMore { strings, length, shift } => {
                let length = length.saturating_add(u32::from(byte & 0x7f) << shift.min(BITS - 7));
                match byte & 0x80 {
                    0 => Self::after_some(strings, length),
                    _ => Self::LengthMore { strings, length, shift: shift.saturating_add(7).min(BITS - 7) },
                }
            }
        }
    }

    fn next(strings: u8) -> Self {
        if strings == 0 { Self::Begin } else { Self::Length(strings) }
    }

    /// With so many bytes left of the first of the strings.
    fn after_some(strings: u8, left: u32) -> Self {
        if left > 0 { Self::String { strings, left } } else { Self::next(strings.saturating_sub(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_however_they_are_cut() {
        let value = [b'v'; 300];
        let long = [&[0x04, 0x7f, 0xad, 0x01], &value[..]].concat();
        for (block, fields) in [
            // From the tables.
            (&b"\x82\x86\x84"[..], 3),
            (b"\xbe\xbe\xbe\xbe", 4),
            (b"\xff\x80\x01\x82", 2),
            // RFC 7541 C.2.1, C.2.2 and C.2.3.
            (b"\x40\x0acustom-key\x0dcustom-header", 1),
            (b"\x04\x0c/sample/path", 1),
            (b"\x10\x08password\x06secret", 1),
            // C.4.1, in Huffman's code.
            (b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", 4),
            // A change of the table's size, which is no field, but costs as much.
            (b"\x3f\xe1\x1f\x82", 2),
            // An index of two bytes, empty strings.
            (b"\x0f\x10\x01v\x00\x00\x00\x82", 3),
            (&long, 1),
        ] {
            for size in 1..=block.len() {
                let mut state = Fields::default();
                let found: u32 = block.chunks(size).map(|piece| state.begun(piece)).sum();
                assert_eq!((found, state), (fields, Fields::Begin), "{block:x?} in pieces of {size}");
            }
        }
    }
}
