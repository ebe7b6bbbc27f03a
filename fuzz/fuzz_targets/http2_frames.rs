//! What an HBONE peer sends once its connection stands: any frames, cut into any reads. However much
//! sense they make, serving ends once they have ended, and so does every stream.
#![no_main]

use std::time::Duration;

use http::HeaderMap;
use leno_tunnel::{InboundConnect, Settings, server::serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, sink, split};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A client's first words: the preface and empty SETTINGS (RFC 9113 §3.4).
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Passes only while nothing can happen any more.
const HANGS: Duration = Duration::from_secs(3600);

async fn echo(inbound: InboundConnect) {
    let Ok(mut stream) = inbound.accept(HeaderMap::new()) else { return };
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

async fn talk(cut: u8, bytes: &[u8]) {
    // So small that inputs reach their ends.
    let settings =
        Settings { max_frame_size: 1 << 14, stream_window: 1 << 16, connection_window: 1 << 17, ..Settings::default() };
    let (near, far) = duplex(1 << 10);
    let mut streams = JoinSet::new();
    let serving = serve(far, &settings, std::future::pending(), |inbound| {
        streams.spawn(echo(inbound));
    });
    let (mut read, mut write) = split(near);
    let speaking = async {
        for part in [BEGINNING].into_iter().chain(bytes.chunks(usize::from(cut) + 1)) {
            if write.write_all(part).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
    };
    let mut unheard = sink();
    let listening = tokio::io::copy(&mut read, &mut unheard);
    let all = async { tokio::join!(serving, speaking, listening).0 };
    let served = timeout(HANGS, all).await.expect("serving never ends");
    assert!(served.bytes_received <= (BEGINNING.len() + bytes.len()) as u64);
    timeout(HANGS, streams.join_all()).await.expect("a stream outlives its connection");
}

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(talk(cut, bytes));
});
