//! SHA-256 (FIPS 180-4), for identifying files.

use std::fmt::Write as _;
use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};

/// Bytes per read.
const BLOCK: usize = 64 * 1024;

/// The SHA-256 of everything that the reader returns, in lower-case hex.
///
/// # Errors
/// If the reader fails, with its error.
pub fn sha256(mut from: impl Read) -> io::Result<String> {
    let mut hash = Context::new(&SHA256);
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => break,
            Ok(count) => hash.update(&block[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut text = String::new();
    for byte in hash.finish().as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of FIPS 180-4, and one that is longer than a block.
    #[test]
    fn known_sums() {
        let cases: [(&[u8], &str); 2] = [
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ];
        for (input, sum) in cases {
            assert_eq!(sha256(input).unwrap(), sum);
        }
        let million = vec![b'a'; 1_000_000];
        let sum = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(sha256(&million[..]).unwrap(), sum);
    }
}
