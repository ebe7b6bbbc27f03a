//! Keys as other programs read them.

use base64::Engine as _;

/// A PKCS#8 key in the form of RFC 7468.
pub(crate) fn private_key(key: &[u8]) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(key);
    let lines: Vec<_> = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"))
}
