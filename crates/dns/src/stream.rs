//! Messages over TCP: each is preceded by its length (RFC 1035 §4.2.2).

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Reads the next message. Not cancel safe. The caller sets the time limit.
///
/// # Errors
/// When the stream ends or breaks.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// A message with its length, as it is written to the stream. `None` if it is too long.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    let mut framed = Vec::with_capacity(2 + message.len());
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    Some(framed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_is_read() {
        let bytes = [framed(b"one").unwrap(), framed(b"").unwrap(), framed(b"three").unwrap()].concat();
        let mut stream = &bytes[..bytes.len() - 1];
        assert_eq!(read(&mut stream).await.unwrap(), b"one");
        assert_eq!(read(&mut stream).await.unwrap(), b"");
        assert_eq!(read(&mut stream).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(framed(&vec![0; 65536]), None);
    }
}
