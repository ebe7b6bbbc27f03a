//! How many requests an endpoint takes at a time on one HTTP/2 connection, as its first SETTINGS say
//! (SETTINGS_MAX_CONCURRENT_STREAMS, RFC 9113 §6.5.2).
//!
//! The library lets the requests wait that are more, and tells nobody. They are to go on another connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use leno_tunnel::frame::{Piece, SETTINGS, Splitter};
use tokio::sync::Notify;

/// The parameter's number.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// Bytes of a parameter and its value.
const ENTRY: usize = 6;

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Streams {
    most: AtomicUsize,
    noise: AtomicBool,
    told: Notify,
}

impl Streams {
    /// Until it is told, the endpoint is taken to bear `most`.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), noise: AtomicBool::new(false), told: Notify::new() }
    }

    /// How many requests it takes, one at least.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Waits until its SETTINGS have come, or never will. One may wait.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    /// Whether something else has come in their place: the endpoint does not speak HTTP/2 (RFC 9113 §3.4).
    pub(crate) fn is_noise(&self) -> bool {
        self.noise.load(Relaxed)
    }

    /// The connection has ended.
    pub(crate) fn ended(&self) {
        self.told.notify_one();
    }
}

/// Looks for the SETTINGS at the beginning of what an endpoint sends.
#[derive(Debug)]
pub(crate) struct FirstSettings {
    splitter: Splitter,
    entry: [u8; ENTRY],
    /// Bytes of `entry` that have come.
    have: usize,
    streams: Arc<Streams>,
}

impl FirstSettings {
    pub(crate) fn new(streams: Arc<Streams>) -> Self {
        Self { splitter: Splitter::new(0), entry: [0; ENTRY], have: 0, streams }
    }

    /// Looks at the next bytes. Returns whether all has been seen.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> bool {
        let mut at = 0;
        while let Some(piece) = self.splitter.next(bytes, &mut at) {
            let complete = match piece {
                Piece::Preface(_) => continue,
                Piece::Head(head) => {
                    self.streams.noise.store(head.kind != SETTINGS, Relaxed);
                    head.kind != SETTINGS || head.length == 0
                }
                Piece::Payload(range, complete) => {
                    bytes[range].iter().for_each(|byte| self.byte(*byte));
                    complete
                }
            };
            if complete {
                self.streams.told.notify_one();
                return true;
            }
        }
        false
    }

    fn byte(&mut self, byte: u8) {
        self.entry[self.have] = byte;
        self.have += 1;
        if self.have == ENTRY {
            self.have = 0;
            let [k, l, value @ ..] = self.entry;
            if u16::from_be_bytes([k, l]) == MAX_CONCURRENT_STREAMS {
                let most = usize::try_from(u32::from_be_bytes(value)).unwrap_or(usize::MAX).max(1);
                self.streams.most.fetch_min(most, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const OTHER: [u8; 6] = [0, 4, 0, 1, 0, 0];

    /// What is known after these bytes, if all has been seen in them.
    fn after(bytes: &[u8], size: usize) -> Option<usize> {
        let streams = Arc::new(Streams::new(100));
        let mut first = FirstSettings::new(streams.clone());
        let seen = bytes.chunks(size).any(|piece| first.look(piece));
        assert_eq!(streams.told().now_or_never().is_some(), seen);
        assert_eq!(streams.is_noise(), bytes.starts_with(b"HTTP"));
        seen.then(|| streams.most())
    }

    #[test]
    fn the_first_settings_count() {
        let settings =
            |entries: &[[u8; 6]]| [&[0, 0, entries.len() as u8 * 6, 4, 0, 0, 0, 0, 0], &entries.concat()[..]].concat();
        let ten = [0, 3, 0, 0, 0, 10];
        for (bytes, most) in [
            (settings(&[]), Some(100)),
            (settings(&[OTHER]), Some(100)),
            (settings(&[OTHER, ten, OTHER]), Some(10)),
            (settings(&[[0, 3, 0, 0, 0, 0]]), Some(1)),
            (settings(&[[0, 3, 0xff, 0xff, 0xff, 0xff]]), Some(100)),
            ([settings(&[]), settings(&[ten])].concat(), Some(100)),
            (settings(&[ten])[..14].to_vec(), None),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), Some(100)),
        ] {
            for size in 1..=bytes.len() {
                assert_eq!(after(&bytes, size), most, "{bytes:?} in pieces of {size}");
            }
        }
    }
}
