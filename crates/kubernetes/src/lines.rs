//! Cuts a stream of bytes into lines: of a watch, or of a log.

use bytes::BytesMut;

/// What came and was not read yet.
#[derive(Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// There is no end of a line before this.
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// What is left without an end of a line.
    pub(crate) fn rest(&mut self) -> Option<BytesMut> {
        self.searched = 0;
        let rest = self.buffer.split();
        (!rest.trim_ascii().is_empty()).then_some(rest)
    }

    /// The next complete line that is not empty.
    pub(crate) fn next(&mut self) -> Option<BytesMut> {
        loop {
            let Some(end) = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_whatever_chunks_come() {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for chunk in ["a", "b\n\nc", "", "\n", "d\ne"] {
            lines.push(chunk.as_bytes());
            while let Some(line) = lines.next() {
                all.push(String::from_utf8_lossy(line.trim_ascii()).into_owned());
            }
        }
        assert_eq!((all, lines.len()), (vec!["ab".to_owned(), "c".to_owned(), "d".to_owned()], 1));
    }
}
