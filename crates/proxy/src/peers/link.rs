//! The TLS connection under a tunnel, and how long its certificates are valid.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use leno_capture::sockets;
use leno_tls::{MeshIdentity, Peer, TlsStream};
use leno_tunnel::{Acknowledged, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Config;

/// The part of a tunnel's life in which it takes new connections. Its life ends with the earlier of the two
/// certificates, or at `LENO_TUNNEL_MAX_AGE`. A certificate is renewed at half its life, so the next tunnel has a fresh
/// one. The side that dialled stops first, so that the other side need not ask for it. Each tunnel draws its own part
/// at random, so that tunnels made together are not all replaced together.
const DIALLED: std::ops::Range<f64> = 0.75..0.85;
const ACCEPTED: std::ops::Range<f64> = 0.85..0.95;

/// A TLS connection to a peer that has proved its identity.
pub struct Link {
    tls: TlsStream<TcpStream>,
    drains: Instant,
}

/// When the first of a tunnel's two certificates expires.
#[derive(Debug, Clone, Copy)]
pub struct Proof {
    end: SystemTime,
    /// Whether that is the peer's certificate.
    pub peers: bool,
}

impl Proof {
    /// For a tunnel between `own` and `peer`.
    pub fn of(own: &MeshIdentity, peer: &Peer) -> Self {
        let own = own.certificate.not_after();
        Self { end: own.min(peer.not_after), peers: peer.not_after <= own }
    }

    /// For whoever speaks to itself.
    pub fn own(own: &MeshIdentity) -> Self {
        Self { end: own.certificate.not_after(), peers: false }
    }

    /// How long both certificates are still valid.
    fn left(&self, now: SystemTime) -> Duration {
        self.end.duration_since(now).unwrap_or_default()
    }

    /// How long ago the certificate expired; `None` while both are valid.
    pub fn passed(&self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.end).ok()
    }
}

impl Link {
    /// A connection that this side opened.
    pub fn dialled(tls: TlsStream<TcpStream>, proof: Proof, config: &Config) -> Self {
        Self::new(tls, proof, config, DIALLED)
    }

    /// A connection that the peer opened.
    pub fn accepted(tls: TlsStream<TcpStream>, proof: Proof, config: &Config) -> Self {
        Self::new(tls, proof, config, ACCEPTED)
    }

    fn new(tls: TlsStream<TcpStream>, proof: Proof, config: &Config, share: std::ops::Range<f64>) -> Self {
        // Certificates are valid by the wall clock. From here on, elapsed time counts.
        let left = proof.left(config.clock.now());
        Self { tls, drains: Instant::now() + useful(left, config.tunnel_max_age, share) }
    }
}

/// How long a tunnel takes new connections whose certificates are valid for `left`.
fn useful(left: Duration, max_age: Duration, share: std::ops::Range<f64>) -> Duration {
    left.min(max_age).mul_f64(rand::random_range(share))
}

impl Transport for Link {
    fn drains_at(&self) -> Option<Instant> {
        Some(self.drains)
    }

    fn acknowledged(&self) -> Option<Acknowledged> {
        let (bytes, more_is_on_its_way) = sockets::acknowledged(self.tls.get_ref()).ok()?;
        Some(Acknowledged { bytes, more_is_on_its_way })
    }
}

impl AsyncRead for Link {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_tunnel_is_replaced_before_its_certificates_end_and_first_by_who_dialled() {
        for (left, max_age, life) in [(HOUR, 24 * HOUR, HOUR), (24 * HOUR, HOUR, HOUR), (HOUR, HOUR, HOUR)] {
            for _ in 0..1000 {
                let [dialled, accepted] = [DIALLED, ACCEPTED].map(|share| useful(left, max_age, share));
                assert!(dialled < accepted && accepted < life, "{dialled:?} {accepted:?} of {life:?}");
                // The certificates were renewed long before, at half of their life.
                assert!(dialled > life / 2, "{dialled:?} of {life:?}");
            }
        }
    }

    #[test]
    fn a_certificate_that_has_ended_has_no_time_left() {
        let end = SystemTime::now();
        let proof = Proof { end, peers: true };
        assert_eq!((proof.left(end - HOUR), proof.passed(end - HOUR)), (HOUR, None));
        assert_eq!((proof.left(end), proof.passed(end)), (Duration::ZERO, Some(Duration::ZERO)));
        assert_eq!((proof.left(end + HOUR), proof.passed(end + HOUR)), (Duration::ZERO, Some(HOUR)));
    }
}
