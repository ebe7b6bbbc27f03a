//! The cryptography both lanes use: cipher suites and key exchange, in order of preference.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};

/// AES-GCM only, the 128-bit one first: every server CPU has AES instructions, and the peers a
/// mesh meets (ztunnel, Envoy in FIPS mode) never agree on ChaCha20. The hybrid post-quantum
/// group leads, so that traffic recorded today stays secret; the classical ones serve peers
/// that lack it.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384],
        kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1],
        ..aws_lc_rs::default_provider()
    })
});

/// TLS 1.3 only (RFC 8446): 1.2 would send certificates in the clear.
pub(crate) static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

pub(crate) fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}
