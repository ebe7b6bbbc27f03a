//! Who is speaking? SPIFFE identities, certificates, CA, trust and handshakes.
//!
//! * [`MeshIdentity`]: one workload's certificate, ready to accept and open mutual TLS 1.3.
//! * [`CertificateManager`]: gets those certificates from an [`Issuer`] and renews them.
//! * [`CertificateAuthority`]: a built-in issuer, a root and an intermediate on disk.
//! * [`ClientHello`]: the server name that a client asks for, read on the way.
//! * [`ControlAcceptor`], [`ControlConnector`]: server-authenticated TLS for the control plane.
//!
//! No other crate names rustls, aws-lc, rcgen or x509. Within this one, only `library` names rustls, so that the TLS
//! library can be changed in one place.

mod alert;
mod authority;
mod authority_elsewhere;
mod authority_files;
pub mod buffer;
mod certificate;
mod clock;
mod control;
mod effort;
mod error;
mod fingerprint;
#[doc(hidden)]
pub mod fuzzing;
mod gathered;
mod handshake;
mod incoming;
pub mod jwk;
mod keys;
mod library;
mod manager;
mod outgoing;
mod record;
mod rotation;
mod signing;
mod stream;
mod turn;
pub mod unproven;
mod verify;
mod violation;

pub use alert::PeerAlert;
pub use authority::CertificateAuthority;
pub use authority_elsewhere::AuthorityFiles;
pub use certificate::{CertificateInfo, PrivateKey, ServerCertificate, WorkloadCertificate, certificate_request};
pub use clock::Clock;
pub use control::{ControlAcceptor, ControlConnector, LearntRoots, RootSource};
pub use error::{CertificateError, Error, HandshakeError, IssueError};
pub use fingerprint::sha256;
pub use handshake::{ALPN_H2, HANDSHAKE_TIMEOUT, MeshIdentity, Peer};
pub use library::{ClientHello, NotTls};
pub use manager::{CertificateManager, CertificateState, CertificateStatus, CertificateStore, Issuer, Options};
pub use signing::CaOptions;
pub use stream::TlsStream;
