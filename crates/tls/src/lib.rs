//! Who is speaking? SPIFFE identities, certificates, CA, trust and handshakes.
