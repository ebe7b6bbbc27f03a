//! The TLS record layer: bytes from the wire, a way there and back with one byte changed, and floods of
//! records that bring nothing.
#![no_main]

use std::io::ErrorKind;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leno_tls::fuzzing::{AnyRecords, there_and_back, wire};
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor, ControlConnector, RootSource};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

const NAME: &str = "control.test";
const HANGS: Duration = Duration::from_secs(60);

static ENDS: LazyLock<(ControlAcceptor, ControlConnector)> = LazyLock::new(|| {
    let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap());
    let roots = RootSource::Pem(authority.root_pem().to_owned());
    let acceptor = ControlAcceptor::from_authority(authority, vec![NAME.to_owned()], Vec::new()).unwrap();
    (acceptor, ControlConnector::new(roots))
});

/// What may come before it is too much.
struct Left {
    updates: u32,
    empty: u32,
    warnings: u32,
}

/// Each piece is a kind of record, and how many of them come.
async fn floods(pieces: &[(u8, u8)]) {
    let (acceptor, connector) = &*ENDS;
    let (near, far) = duplex(1 << 22);
    let (server, client) = tokio::join!(acceptor.accept(far, HANGS), connector.connect(near, NAME, HANGS));
    let ((mut io, mut records), mut server) = (AnyRecords::of(client.unwrap()), server.unwrap());
    let (mut out, mut sent, mut refused) = (Vec::new(), 0, false);
    let mut left = Left { updates: 32, empty: 32, warnings: 4 };
    for kind in pieces.iter().flat_map(|(kind, times)| std::iter::repeat_n(kind % 5, usize::from(times % 40))) {
        // Of what has not been refused, all must come out.
        let more = match kind {
            0 | 1 => {
                records.key_update(kind, &mut out);
                left.empty = 32;
                left.updates.checked_sub(1).map(|updates| left.updates = updates)
            }
            2 => {
                records.seal(&[1, 90, 21], &mut out);
                left.empty = 32;
                left.warnings.checked_sub(1).map(|warnings| left.warnings = warnings)
            }
            3 => {
                records.seal(&[23, 0, 0], &mut out);
                left.empty.checked_sub(1).map(|empty| (left.empty, left.updates) = (empty, 32))
            }
            _ => {
                records.seal(&[7, 23], &mut out);
                (left.empty, left.updates) = (32, 32);
                sent += usize::from(!refused);
                Some(())
            }
        };
        refused |= more.is_none();
    }
    io.write_all(&out).await.unwrap();
    io.shutdown().await.unwrap();
    let mut received = Vec::new();
    let end = server.read_to_end(&mut received).await.unwrap_err().kind();
    assert_eq!(end, if refused { ErrorKind::InvalidData } else { ErrorKind::UnexpectedEof }, "{pieces:?}");
    assert_eq!(received, vec![7; sent], "{pieces:?}");
}

libfuzzer_sys::fuzz_target!(|input: (Vec<u16>, u16, Option<(u32, u8)>, Vec<u8>, Vec<(u8, u8)>)| {
    let (writes, chunk, damage, bytes, pieces) = input;
    there_and_back(&writes[..writes.len().min(32)], chunk, damage);
    wire(&bytes);
    if !pieces.is_empty() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(floods(&pieces[..pieces.len().min(32)]));
    }
});
