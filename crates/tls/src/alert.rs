//! TLS alerts: what one side tells the other when something ends a connection (RFC 8446 §6).

use std::fmt;
use std::io;

/// Level of an alert.
pub(crate) const WARNING: u8 = 1;
pub(crate) const FATAL: u8 = 2;

/// An alert's description, as its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alert(pub(crate) u8);

impl Alert {
    pub(crate) const CLOSE_NOTIFY: Self = Self(0);
    pub(crate) const UNEXPECTED_MESSAGE: Self = Self(10);
    pub(crate) const BAD_RECORD_MAC: Self = Self(20);
    pub(crate) const RECORD_OVERFLOW: Self = Self(22);
    const HANDSHAKE_FAILURE: Self = Self(40);
    const BAD_CERTIFICATE: Self = Self(42);
    const UNSUPPORTED_CERTIFICATE: Self = Self(43);
    const CERTIFICATE_EXPIRED: Self = Self(45);
    const CERTIFICATE_UNKNOWN: Self = Self(46);
    pub(crate) const ILLEGAL_PARAMETER: Self = Self(47);
    const UNKNOWN_CA: Self = Self(48);
    const ACCESS_DENIED: Self = Self(49);
    pub(crate) const DECODE_ERROR: Self = Self(50);
    const PROTOCOL_VERSION: Self = Self(70);
    pub(crate) const INTERNAL_ERROR: Self = Self(80);
    pub(crate) const USER_CANCELED: Self = Self(90);
    const CERTIFICATE_REQUIRED: Self = Self(116);
    const NO_APPLICATION_PROTOCOL: Self = Self(120);
}

impl fmt::Display for Alert {
    /// The name that TLS gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            113 => "bad_certificate_status_response",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            unknown => return write!(f, "{unknown}"),
        })
    }
}

/// A fatal alert from the peer (RFC 8446 §6.2), in words.
///
/// In TLS 1.3, a client has finished its handshake before the server checks its certificate. So the server's refusal
/// arrives as the error of the first read. [`PeerAlert::of`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAlert(pub(crate) Alert);

impl PeerAlert {
    /// The alert's number.
    pub fn code(self) -> u8 {
        self.0.0
    }

    /// The alert behind the error of a read; `None` if it has another cause.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()).copied()
    }
}

impl fmt::Display for PeerAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alert = self.0;
        match alert {
            Alert::UNKNOWN_CA => {
                write!(
                    f,
                    "it does not trust our certificate's issuer ({alert}); check that both sides use the same root"
                )
            }
            Alert::CERTIFICATE_EXPIRED => {
                write!(f, "it considers our certificate expired ({alert}); check both clocks")
            }
            Alert::CERTIFICATE_REQUIRED => write!(f, "it wants a client certificate and got none ({alert})"),
            Alert::NO_APPLICATION_PROTOCOL => write!(f, "it speaks none of our application protocols ({alert})"),
            Alert::HANDSHAKE_FAILURE => write!(f, "it shares no cipher suite or key exchange with us ({alert})"),
            Alert::PROTOCOL_VERSION => write!(f, "it does not speak TLS 1.3 ({alert})"),
            Alert::BAD_CERTIFICATE
            | Alert::CERTIFICATE_UNKNOWN
            | Alert::ACCESS_DENIED
            | Alert::UNSUPPORTED_CERTIFICATE => {
                write!(f, "it does not accept our identity ({alert}); its log names the reason")
            }
            _ => write!(f, "TLS alert {alert}"),
        }
    }
}

impl std::error::Error for PeerAlert {}
