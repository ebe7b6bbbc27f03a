//! One question to the agent: HTTP over its unix socket, without a library, because that is all there is to it.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::events::PodEvent;

/// Longest answer that is read.
const ANSWER_MAX: usize = 64 << 10;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is as it should be.
    Done,
    /// The agent says why not.
    Refused {
        /// Whether the same may succeed later.
        retry: bool,
        /// The agent's words.
        reason: String,
    },
    /// No agent answers, or it is not ready to decide.
    Unavailable(String),
}

/// Asks the agent at `socket`, for `patience` at most.
pub(crate) fn ask(socket: &Path, path: &str, pod: &PodEvent, patience: Duration) -> Answer {
    match exchange(socket, path, pod, patience) {
        Ok((200..=299, _)) => Answer::Done,
        Ok((503, reason)) => Answer::Unavailable(reason),
        Ok((status, reason)) => Answer::Refused { retry: status == 409, reason },
        Err(error) => Answer::Unavailable(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "no agent is there".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("it is silent for {patience:?}"),
            _ => error.to_string(),
        }),
    }
}

fn exchange(socket: &Path, path: &str, pod: &PodEvent, patience: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + patience;
    let mut stream = UnixStream::connect(socket)?;
    let body = serde_json::to_string(pod).map_err(io::Error::other)?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: leno\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() < ANSWER_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    parse(&answer).ok_or_else(|| io::Error::other("its answer can't be read"))
}

/// Status and body. The agent ends the connection after one answer, which is not in chunks.
fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\na: b\r\n\r\n{}\n"), Some((200, "{}".to_owned())));
        assert_eq!(parse(b"HTTP/1.1 409 Conflict\r\n\r\n"), Some((409, String::new())));
        for bad in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 many\r\n\r\n", b"\xff\xfe"] {
            assert_eq!(parse(bad), None);
        }
    }
}
