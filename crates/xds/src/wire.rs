//! Protobuf's wire format, for the places where the library would copy.

/// Tag of a field of bytes, text or a message.
pub(crate) const fn tag(field: u8) -> u8 {
    // Higher field numbers have longer tags.
    assert!(field < 16);
    field << 3 | 2
}

/// Appends a field of bytes, text or a message.
pub(crate) fn put(out: &mut Vec<u8>, field: u8, content: &[u8]) {
    out.push(tag(field));
    prost::encode_length_delimiter(content.len(), out).unwrap_or_default();
    out.extend_from_slice(content);
}

/// Length of such a field.
pub(crate) fn length(content: usize) -> usize {
    1 + prost::length_delimiter_len(content) + content
}

/// The bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields of a message: the number and content of those that hold bytes, text or a message. Others are skipped.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (content, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(content)
    }

    fn field(&mut self) -> Result<Option<(u64, &'a [u8])>, Malformed> {
        let key = self.varint()?;
        match key & 7 {
            0 => drop(self.varint()?),
            1 => drop(self.take(8)?),
            2 => {
                let length = self.varint()?;
                return Ok(Some((key >> 3, self.take(length)?)));
            }
            5 => drop(self.take(4)?),
            _ => return Err(Malformed),
        }
        Ok(None)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.field() {
                Ok(Some(field)) => return Some(Ok(field)),
                Ok(None) => {}
                Err(error) => {
                    self.0 = &[];
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
