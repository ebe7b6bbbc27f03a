//! One HTTP request from inside a network namespace.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_capture::NetworkNamespace;

/// A node proxy answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Body of `GET path` from a port of the namespace's loopback. Blocks.
pub(super) fn get(namespace: &NetworkNamespace, port: u16, path: &str) -> anyhow::Result<String> {
    // A socket stays in the namespace it was made in, so only the connecting happens inside.
    let mut stream = namespace
        .run(|| TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT))?
        .with_context(|| format!("connecting to port {port} of a node's proxy"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the end of the body is the end of the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response).with_context(|| format!("reading {path} of a node's proxy"))?;
    let Some((head, body)) = response.split_once("\r\n\r\n") else {
        bail!("{path} of a node's proxy: the answer is cut short");
    };
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{path} of a node's proxy: {status}");
    }
    Ok(body.to_owned())
}
