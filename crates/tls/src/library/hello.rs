//! The first message of a TLS client, for those who pass a connection on unread and only ask for whom it is.

use rustls::server::Acceptor;

/// Reads a client's first message as its bytes come. Nothing is answered.
#[derive(Default)]
pub struct ClientHello(Acceptor);

/// What a client sends is not the beginning of TLS.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the client's first bytes are not the beginning of TLS: {0}")]
pub struct NotTls(String);

impl NotTls {
    /// Whether the same bytes may be read later. They may not.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

impl ClientHello {
    /// Takes the next bytes. Returns the server name that the client asks for (RFC 6066 §3; the inner `None` if it asks for
    /// none) once its message is complete; `None` before.
    ///
    /// # Errors
    /// If it is no message of that kind, or a broken one.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<Option<Option<String>>, NotTls> {
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).map_err(|error| NotTls(error.to_string()))?;
            match self.0.accept() {
                Ok(Some(accepted)) => return Ok(Some(accepted.client_hello().server_name().map(str::to_owned))),
                Ok(None) => {}
                Err((error, _)) => return Err(NotTls(error.to_string())),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
