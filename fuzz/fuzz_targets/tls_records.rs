//! The TLS record layer: bytes from the wire, and a way there and back with one byte changed.
#![no_main]

use leno_tls::fuzzing::{there_and_back, wire};

libfuzzer_sys::fuzz_target!(|input: (Vec<u16>, u16, Option<(u32, u8)>, Vec<u8>)| {
    let (writes, chunk, damage, bytes) = input;
    there_and_back(&writes[..writes.len().min(32)], chunk, damage);
    wire(&bytes);
});
