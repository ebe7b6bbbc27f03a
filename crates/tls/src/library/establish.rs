//! The handshake, up to the keys that this crate's record layer continues with. No other file names the library's
//! connection types.
//!
//! The library's next release (0.24) has no unbuffered connections: `run` then begins with
//! `ClientConfig::connect(name).build(&mut outgoing)` or `ServerConnection::new(config)`, shows each record to
//! `process_new_packets(&mut SliceInput::new(shown), &mut outgoing)` for as long as `is_handshaking()`, and takes
//! keys and facts from `split()`, by its `outputs` and its `dangerous_into_kernel_connection()`. What is to be
//! sent, alerts as well, lies in `outgoing` by then, so that `Next`, `step` and the second look for the alert go.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedConnectionCommon, UnbufferedStatus};
use rustls::{
    AlertDescription, ClientConfig, CommonState, ConnectionTrafficSecrets, ExtractedSecrets, NamedGroup, ServerConfig,
};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::verifiers::reason_of;
use crate::HandshakeError;
use crate::alert::{Alert, FATAL};
use crate::gathered::{Failed, Gathered};
use crate::keys::{KeySource, Keys, NEW_SESSION_TICKET};
use crate::record::{Aead, Cipher};
use crate::stream::TlsStream;
use crate::turn::turn;
use crate::violation::Violation;

/// An alert in the clear (RFC 8446 §6), as the library sends it for a message longer than it takes.
const TOO_LONG: [u8; 7] = [21, 3, 3, 0, 2, FATAL, Alert::DECODE_ERROR.0];

/// The results of a handshake, besides the keys.
pub(crate) struct Facts {
    pub(crate) alpn: Option<Box<[u8]>>,
    /// The peer's own certificate, if it sent one.
    pub(crate) leaf: Option<CertificateDer<'static>>,
    /// The key exchange, by its IANA name.
    pub(crate) key_exchange: &'static str,
}

/// Connects with `config`.
pub(super) async fn connect<IO>(
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
    io: IO,
) -> Result<(TlsStream<IO>, Facts), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    run(UnbufferedClientConnection::new(config.clone(), name), &config.alpn_protocols, io).await
}

/// Accepts with `config`.
pub(super) async fn accept<IO>(config: &Arc<ServerConfig>, io: IO) -> Result<(TlsStream<IO>, Facts), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    run(UnbufferedServerConnection::new(config.clone()), &config.alpn_protocols, io).await
}

/// The differences between client and server.
trait Side: Deref<Target = UnbufferedConnectionCommon<Self::Data>> {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySource>), rustls::Error>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySource>), rustls::Error> {
        let (secrets, source) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(source)))
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn KeySource>), rustls::Error> {
        let (secrets, source) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(source)))
    }
}

/// What the TLS library needs next.
enum Next {
    Send,
    Receive,
    Done,
    Failed(rustls::Error),
}

/// `alpn` are the protocols of `side`, for the error if none is agreed on.
async fn run<S, IO>(
    side: Result<S, rustls::Error>,
    alpn: &[Vec<u8>],
    mut io: IO,
) -> Result<(TlsStream<IO>, Facts), HandshakeError>
where
    S: Side,
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let failed = |error: rustls::Error| reason_of(&error, alpn);
    let mut side = side.map_err(failed)?;
    let mut incoming = Gathered::default();
    let mut outgoing = Vec::new();
    loop {
        let next = {
            let _turn = turn().await;
            loop {
                let (discard, next) = step(&mut side, incoming.shown(), &mut outgoing);
                incoming.discard(discard);
                if let Some(next) = next {
                    break next;
                }
            }
        };
        match next {
            Next::Send => {
                io.write_all(&outgoing).await.map_err(broken)?;
                io.flush().await.map_err(broken)?;
                outgoing.clear();
            }
            Next::Receive => {
                if let Err(failed) = incoming.show_next(&mut io).await {
                    if let Failed::TooLong { is_plain: true, .. } = failed {
                        tell(&mut io, &TOO_LONG).await;
                    }
                    return Err(failed.into());
                }
            }
            Next::Done => break,
            Next::Failed(error) => {
                // The library is asked once more, for its alert. A second time, it would process the same bytes again.
                let _ = step(&mut side, incoming.shown(), &mut outgoing);
                tell(&mut io, &outgoing).await;
                return Err(failed(error));
            }
        }
    }
    let common: &CommonState = &side;
    let facts = Facts {
        alpn: common.alpn_protocol().map(Box::from),
        leaf: common.peer_certificates().and_then(<[_]>::first).map(|leaf| leaf.clone().into_owned()),
        key_exchange: common.negotiated_key_exchange_group().map_or("unknown", |group| group_name(group.name())),
    };
    let (secrets, source) = side.into_keys().map_err(failed)?;
    let keys = cipher(secrets.tx).and_then(|sealing| Ok(Keys::new(sealing, cipher(secrets.rx)?, source)));
    let keys = keys.map_err(|violation| HandshakeError::Protocol(violation.to_string()))?;
    Ok((TlsStream::new(io, keys, incoming.rest(), facts.alpn.clone()), facts))
}

/// How much of `shown` was handled, and what comes next, unless it is another step.
fn step<S: Side>(side: &mut S, shown: &mut [u8], outgoing: &mut Vec<u8>) -> (usize, Option<Next>) {
    let UnbufferedStatus { discard, state } = side.process(shown);
    let next = match state {
        Err(error) => Next::Failed(error),
        Ok(ConnectionState::EncodeTlsData(mut message)) => {
            let start = outgoing.len();
            match message.encode(&mut []) {
                Ok(_) => return (discard, None),
                Err(EncodeError::InsufficientSize(needs)) => {
                    outgoing.resize(start + needs.required_size, 0);
                    match message.encode(&mut outgoing[start..]) {
                        Ok(_) => return (discard, None),
                        Err(error) => Next::Failed(rustls::Error::General(error.to_string())),
                    }
                }
                Err(error) => Next::Failed(rustls::Error::General(error.to_string())),
            }
        }
        Ok(ConnectionState::TransmitTlsData(message)) => {
            message.done();
            Next::Send
        }
        Ok(ConnectionState::BlockedHandshake) => Next::Receive,
        Ok(ConnectionState::WriteTraffic(_)) => Next::Done,
        // This can't happen before the handshake's end, and nothing after it is shown.
        Ok(_) => Next::Failed(rustls::Error::General("data before the end of the handshake".to_owned())),
    };
    (discard, Some(next))
}

/// Ends the handshake. It returns the reason, whether or not the alert reached the peer.
async fn tell<IO: AsyncWrite + Unpin>(io: &mut IO, alert: &[u8]) {
    if io.write_all(alert).await.is_ok() {
        let _ = io.flush().await;
    }
}

fn broken(error: io::Error) -> HandshakeError {
    HandshakeError::Io(Arc::new(error))
}

fn group_name(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768",
        NamedGroup::X25519 => "X25519",
        NamedGroup::secp256r1 => "secp256r1",
        NamedGroup::secp384r1 => "secp384r1",
        _ => "other",
    }
}

impl KeySource for KernelConnection<ClientConnectionData> {
    fn next_sealing(&mut self) -> Result<Cipher, Violation> {
        self.update_tx_secret().map_err(no_key).and_then(cipher)
    }

    fn next_opening(&mut self) -> Result<Cipher, Violation> {
        self.update_rx_secret().map_err(no_key).and_then(cipher)
    }

    fn ticket_received(&mut self, body: &[u8]) -> Result<(), Violation> {
        self.handle_new_session_ticket(body).map_err(|error| match error {
            rustls::Error::InvalidMessage(message) => {
                let reason = format!("{message:?}").into();
                Violation::Ticket { reason, alert: Alert(u8::from(AlertDescription::from(message))) }
            }
            error => no_key(error),
        })
    }
}

impl KeySource for KernelConnection<ServerConnectionData> {
    fn next_sealing(&mut self) -> Result<Cipher, Violation> {
        self.update_tx_secret().map_err(no_key).and_then(cipher)
    }

    fn next_opening(&mut self) -> Result<Cipher, Violation> {
        self.update_rx_secret().map_err(no_key).and_then(cipher)
    }

    /// Only servers send tickets.
    fn ticket_received(&mut self, _: &[u8]) -> Result<(), Violation> {
        Err(Violation::UnexpectedMessage(NEW_SESSION_TICKET))
    }
}

fn cipher((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Cipher, Violation> {
    let (aead, key, iv) = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Aead::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Aead::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Aead::ChaCha20Poly1305, key, iv),
        _ => return Err(Violation::NoKey("a cipher suite without a record layer".into())),
    };
    Cipher::new(aead, key.as_ref(), iv.as_ref(), sequence)
        .ok_or_else(|| Violation::NoKey("a traffic key of the wrong length".into()))
}

fn no_key(error: rustls::Error) -> Violation {
    Violation::NoKey(error.to_string().into())
}
