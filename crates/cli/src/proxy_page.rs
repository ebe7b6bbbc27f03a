//! One HTTP request to a node's proxy.

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};

/// The longest head of an answer, bytes.
const HEAD: u64 = 64 << 10;

/// What a proxy answered: its status, and its body from the first byte on.
pub(crate) struct Page<S> {
    /// HTTP status.
    pub(crate) status: u16,
    /// The body; it ends with the connection.
    pub(crate) body: BufReader<S>,
}

/// Asks for `path`.
///
/// # Errors
/// If the connection breaks, or what comes is no HTTP.
pub(crate) async fn open<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, path: &str) -> anyhow::Result<Page<S>> {
    // HTTP/1.0: the end of the body is the end of the connection.
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.with_context(|| format!("asking for {path}"))?;
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let left = HEAD.saturating_sub(head.len() as u64);
        let read = (&mut reader).take(left).read_until(b'\n', &mut head).await;
        if read.with_context(|| format!("reading the answer to {path}"))? == 0 {
            bail!("{path}: the answer is cut short");
        }
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("{path}: the answer is no HTTP"))?;
    Ok(Page { status, body: reader })
}

/// The whole body of `path`.
///
/// # Errors
/// As [`open`], and for any status but 200.
pub(crate) async fn get<S: AsyncRead + AsyncWrite + Unpin>(stream: S, path: &str) -> anyhow::Result<String> {
    let mut page = open(stream, path).await?;
    let mut body = String::new();
    page.body.read_to_string(&mut body).await.with_context(|| format!("reading {path}"))?;
    if page.status != 200 {
        bail!("{path}: HTTP status {}: {}", page.status, body.trim());
    }
    Ok(body)
}
