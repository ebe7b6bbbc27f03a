//! Which protocol do the first bytes of a connection speak?

use memchr::memchr;

/// What the bytes so far tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// HTTP/1.x: a request line.
    Http1,
    /// HTTP/2 with prior knowledge: its preface (RFC 9113 §3.4).
    Http2,
    /// None of them.
    Other,
    /// More bytes are needed.
    Unclear,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longest method that is one. Registered ones have 16 characters at most (IANA).
const METHOD_MAX: usize = 24;

/// As much of a request line as is looked at. A longer one begins like HTTP and is left to the HTTP library, which refuses
/// what is too long.
const LINE_MAX: usize = 4 << 10;

/// What `bytes`, the first of a connection, speak.
pub(crate) fn spoken(bytes: &[u8]) -> Spoken {
    let common = bytes.len().min(PREFACE.len());
    if bytes[..common] == PREFACE[..common] {
        return if common == PREFACE.len() { Spoken::Http2 } else { Spoken::Unclear };
    }
    // Robust servers ignore an empty line before a request (RFC 9112 §2.2).
    if bytes == b"\r" {
        return Spoken::Unclear;
    }
    let line = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    let method = line.iter().take(METHOD_MAX + 1).take_while(|b| is_token(b)).count();
    if method == line.len() && method <= METHOD_MAX {
        return Spoken::Unclear;
    }
    if method == 0 || method > METHOD_MAX || line.get(method) != Some(&b' ') {
        return Spoken::Other;
    }
    match memchr(b'\n', line) {
        Some(end) => {
            let request = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            let version = request.len().checked_sub(" HTTP/1.1".len()).map(|start| &request[start..]);
            let is_http =
                version.is_some_and(|version| version.starts_with(b" HTTP/1.") && version[8].is_ascii_digit());
            if is_http { Spoken::Http1 } else { Spoken::Other }
        }
        None if line.len() >= LINE_MAX => Spoken::Http1,
        None => Spoken::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], Spoken::Http1),
            (b"\r\nGET / HTTP/1.0\r\n", Spoken::Http1),
            (b"\r", Spoken::Unclear),
            (b"\rGET / HTTP/1.0\r\n", Spoken::Other),
            (b"M-SEARCH * HTTP/1.1\r\n", Spoken::Http1),
            (b"GET / HTTP/1.1\n", Spoken::Http1),
            (PREFACE, Spoken::Http2),
            (&PREFACE[..5], Spoken::Unclear),
            (b"PRI * HTTP/2.0\r\n\r\nxx", Spoken::Other),
            (b"", Spoken::Unclear),
            (b"GE", Spoken::Unclear),
            (b"GET /a/long/path", Spoken::Unclear),
            (b"GET key\r\n", Spoken::Other),
            (b"EHLO mail.example\r\n", Spoken::Other),
            (b"*1\r\n$4\r\nPING\r\n", Spoken::Other),
            (b"\x16\x03\x01\x02\x00", Spoken::Other),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Spoken::Other),
            (b"GET / HTTP/9.9\r\n", Spoken::Other),
            (b"abcdefghijklmnopqrstuvwxyz", Spoken::Other),
            (b"SSH-2.0-OpenSSH_9\r\n", Spoken::Other),
        ] {
            assert_eq!(spoken(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
        let long = [b"GET /", &[b'a'; LINE_MAX][..]].concat();
        assert_eq!(spoken(&long), Spoken::Http1, "the HTTP library refuses it");
    }

    #[test]
    fn no_prefix_of_a_request_is_taken_for_something_else() {
        let request = b"OPTIONS /some/path?a=b HTTP/1.1\r\nhost: a\r\n\r\n";
        for end in 0..request.len() {
            let spoken = spoken(&request[..end]);
            assert!(matches!(spoken, Spoken::Unclear | Spoken::Http1), "{end}: {spoken:?}");
        }
    }
}
