//! The first message of a TLS client, of which a waypoint reads the server name.
#![no_main]

use leno_tls::ClientHello;

/// What is found in these bytes, of which `size` come at a time.
fn read(bytes: &[u8], size: usize) -> Result<Option<Option<String>>, ()> {
    let mut hello = ClientHello::default();
    for piece in bytes.chunks(size) {
        if let Some(name) = hello.read(piece).map_err(drop)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The same message with the lengths that its head should have.
fn with_right_lengths(bytes: &[u8]) -> Option<Vec<u8>> {
    let body = bytes.get(9..)?;
    let length = u16::try_from(body.len()).ok()?;
    let mut out = vec![22, 3, 1];
    out.extend(length.checked_add(4)?.to_be_bytes());
    out.extend([1, 0]);
    out.extend(length.to_be_bytes());
    out.extend(body);
    Some(out)
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for bytes in [Some(data.to_vec()), with_right_lengths(data)].into_iter().flatten() {
        let whole = read(&bytes, bytes.len().max(1));
        for size in [1, 7, 1000] {
            assert_eq!(read(&bytes, size), whole, "in pieces of {size}");
        }
        if let Ok(Some(Some(name))) = whole {
            // It is compared with policies and written into logs.
            assert!(name.len() < 256 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{name:?}");
        }
    }
});
