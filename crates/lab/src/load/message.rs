//! HTTP/1.1, as far as the generator and its server need it (RFC 9112).

use std::str::from_utf8;

/// The longest accepted head of a message.
pub(super) const HEAD_MAX: usize = 16 * 1024;

/// What is still to come of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Body { left: u64 },
    Done,
}

/// Reads responses one after the other.
#[derive(Debug)]
pub(super) struct ResponseReader {
    state: State,
    /// The incomplete head.
    head: Vec<u8>,
    status: u16,
    close: bool,
    body: u64,
}

impl ResponseReader {
    pub(super) fn new() -> Self {
        Self { state: State::Head, head: Vec::new(), status: 0, close: false, body: 0 }
    }

    /// Gets ready for the next response.
    pub(super) fn reset(&mut self) {
        self.state = State::Head;
        self.head.clear();
        self.body = 0;
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Whether the server closes the connection after this response.
    pub(super) fn closes(&self) -> bool {
        self.close
    }

    /// Bytes of the body so far.
    pub(super) fn body(&self) -> u64 {
        self.body
    }

    /// Whether any byte of the response arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::Head || !self.head.is_empty()
    }

    /// Reads the bytes that have arrived.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<Progress, &'static str> {
        if self.state == State::Head {
            let known = self.head.len();
            let head: &[u8] = if known == 0 {
                bytes
            } else {
                self.head.extend_from_slice(bytes);
                &self.head
            };
            let Some(end) = head_end(head) else {
                if head.len() > HEAD_MAX {
                    return Err("response head too long");
                }
                if known == 0 {
                    self.head.extend_from_slice(bytes);
                }
                return Ok(Progress::More);
            };
            let (status, length, close) = response_head(&head[..end])?;
            (self.status, self.close) = (status, close);
            self.state = State::Body { left: length };
            bytes = &bytes[end - known..];
        }
        if let State::Body { left } = &mut self.state {
            let taken = (*left).min(bytes.len() as u64);
            *left -= taken;
            self.body += taken;
            bytes = &bytes[usize::try_from(taken).unwrap_or(bytes.len())..];
            if *left == 0 {
                self.state = State::Done;
            }
        }
        match self.state {
            State::Done if !bytes.is_empty() => Err("bytes after the response"),
            State::Done => Ok(Progress::Done),
            _ => Ok(Progress::More),
        }
    }
}

/// The index after the blank line that ends a head.
pub(super) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The status, the body's length, and whether the connection closes.
fn response_head(head: &[u8]) -> Result<(u16, u64, bool), &'static str> {
    let head = from_utf8(head).map_err(|_| "response head is not text")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|digits| digits.parse().ok())
        .ok_or("not an HTTP/1.1 response")?;
    let mut length = None;
    let mut close = first.starts_with("HTTP/1.0");
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        } else if name.eq_ignore_ascii_case("connection") {
            close = value.trim().eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("chunked responses are not supported by the load generator");
        }
    }
    Ok((status, length.ok_or("response without content-length")?, close))
}

/// A request as the lab's server sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub path: &'a str,
    /// The length of the body after the head, in bytes.
    pub length: u64,
    pub close: bool,
}

/// Reads a request's head.
pub(super) fn request_head(head: &[u8]) -> Option<Request<'_>> {
    let head = from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (_method, path, version) = (first.next()?, first.next()?, first.next()?);
    let mut request = Request { path, length: 0, close: version == "HTTP/1.0" };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            request.length = value.trim().parse().ok()?;
        } else if name.eq_ignore_ascii_case("connection") {
            request.close = value.trim().eq_ignore_ascii_case("close");
        }
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_in_any_pieces() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        for cut in 1..text.len() {
            let mut reader = ResponseReader::new();
            assert_eq!(reader.feed(&text[..cut]), Ok(Progress::More), "cut at {cut}");
            assert_eq!(reader.feed(&text[cut..]), Ok(Progress::Done), "cut at {cut}");
            assert_eq!((reader.status(), reader.closes(), reader.body()), (200, true, 5));
        }
        let mut reader = ResponseReader::new();
        for byte in &text[..text.len() - 1] {
            assert_eq!(reader.feed(&[*byte]), Ok(Progress::More));
        }
        assert_eq!(reader.feed(b"o"), Ok(Progress::Done));
        reader.reset();
        assert_eq!(reader.feed(b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n"), Ok(Progress::Done));
        assert_eq!((reader.status(), reader.closes()), (503, false));
    }

    #[test]
    fn what_is_no_response() {
        for text in
            ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
        {
            assert!(ResponseReader::new().feed(text.as_bytes()).is_err(), "{text}");
        }
        assert!(ResponseReader::new().feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab").is_err());
        assert!(ResponseReader::new().feed(&vec![b'x'; HEAD_MAX + 1]).is_err());
    }

    #[test]
    fn requests() {
        let head = b"POST /bytes/7 HTTP/1.1\r\nhost: a\r\nContent-Length: 3\r\nconnection: Close\r\n\r\n";
        assert_eq!(request_head(head), Some(Request { path: "/bytes/7", length: 3, close: true }));
        assert_eq!(request_head(b"nonsense\r\n\r\n"), None);
    }
}
