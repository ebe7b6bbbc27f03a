//! The handshake, up to the keys that the record layer here goes on with.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use bytes::BufMut;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedConnectionCommon, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ExtractedSecrets, NamedGroup, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::TlsStream;
use crate::buffer::LARGEST;
use crate::keys::{KeySource, Keys};
use crate::record::{HEADER, MAX_RECORD};
use crate::turn::turn;

/// Most bytes of a handshake that wait to be understood: the longest message there may be, in
/// records of six bytes and more each. What comes behind the handshake counts as well, and goes on in
/// one buffer of the data path, so it may not be more than fits there.
const LIMIT: usize = LARGEST;

/// What a handshake found out, beside the keys.
pub(crate) struct Facts {
    pub(crate) alpn: Option<Box<[u8]>>,
    /// The peer's own certificate, if it showed one.
    pub(crate) leaf: Option<CertificateDer<'static>>,
    pub(crate) key_exchange: Option<NamedGroup>,
}

/// Connects as `config` says.
pub(crate) async fn connect<IO>(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: IO,
) -> io::Result<(TlsStream<IO>, Facts)>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    run(UnbufferedClientConnection::new(config, name).map_err(failed)?, io).await
}

/// Accepts as `config` says.
pub(crate) async fn accept<IO>(config: Arc<ServerConfig>, io: IO) -> io::Result<(TlsStream<IO>, Facts)>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    run(UnbufferedServerConnection::new(config).map_err(failed)?, io).await
}

/// What client and server differ in.
trait Side: Deref<Target = UnbufferedConnectionCommon<Self::Data>> {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn into_keys(self) -> Result<(ExtractedSecrets, KeySource), rustls::Error>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, KeySource), rustls::Error> {
        let (secrets, source) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySource::Client(Box::new(source))))
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, KeySource), rustls::Error> {
        let (secrets, source) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySource::Server(Box::new(source))))
    }
}

/// What the TLS library wants next.
enum Next {
    Send,
    Receive,
    Done,
    Failed(rustls::Error),
}

async fn run<S, IO>(mut side: S, mut io: IO) -> io::Result<(TlsStream<IO>, Facts)>
where
    S: Side,
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut incoming = Vec::with_capacity(4 << 10);
    // The library is shown record by record: what follows the handshake's last must be left to
    // the keys that this handshake is for.
    let mut shown = 0;
    let mut outgoing = Vec::new();
    loop {
        let next = {
            let _turn = turn().await;
            loop {
                let (discard, next) = step(&mut side, &mut incoming[..shown], &mut outgoing);
                incoming.drain(..discard);
                shown -= discard;
                if let Some(next) = next {
                    break next;
                }
            }
        };
        match next {
            Next::Send => {
                io.write_all(&outgoing).await?;
                io.flush().await?;
                outgoing.clear();
            }
            Next::Receive => loop {
                if let Some(longer) = with_next_record(&incoming, shown) {
                    shown = longer;
                    break;
                }
                let room = LIMIT.saturating_sub(incoming.len());
                if room == 0 {
                    return Err(failed(rustls::InvalidMessage::HandshakePayloadTooLarge.into()));
                }
                if io.read_buf(&mut (&mut incoming).limit(room)).await? == 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it"));
                }
            },
            Next::Done => break,
            Next::Failed(error) => {
                // Once more, for the alert; a second time it would look at the same bytes again. The
                // reason counts, not whether the peer heard it.
                let _ = step(&mut side, &mut incoming[..shown], &mut outgoing);
                if io.write_all(&outgoing).await.is_ok() {
                    let _ = io.flush().await;
                }
                return Err(failed(error));
            }
        }
    }
    let common: &CommonState = &side;
    let facts = Facts {
        alpn: common.alpn_protocol().map(Box::from),
        leaf: common.peer_certificates().and_then(<[_]>::first).map(|leaf| leaf.clone().into_owned()),
        key_exchange: common.negotiated_key_exchange_group().map(|group| group.name()),
    };
    let (secrets, source) = side.into_keys().map_err(failed)?;
    let keys = Keys::new(secrets, source).map_err(failed)?;
    Ok((TlsStream::new(io, keys, &incoming, facts.alpn.clone()), facts))
}

/// How much of `shown` was understood, and what comes next, if not another step.
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
        // Not before the handshake's end, and nothing behind it is shown.
        Ok(_) => Next::Failed(rustls::Error::General("data before the end of the handshake".to_owned())),
    };
    (discard, Some(next))
}

/// `shown` and the next record, if it is there in full. Bytes that are no record are shown as
/// they are, for the TLS library to say what is wrong with them.
fn with_next_record(incoming: &[u8], shown: usize) -> Option<usize> {
    let rest = &incoming[shown..];
    let &[content, major, _, high, low] = rest.first_chunk::<HEADER>()?;
    let length = HEADER + usize::from(u16::from_be_bytes([high, low]));
    if !(20..=23).contains(&content) || major != 3 || length > MAX_RECORD {
        return Some(incoming.len());
    }
    (length <= rest.len()).then_some(shown + length)
}

fn failed(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
