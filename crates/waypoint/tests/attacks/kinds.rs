//! Frames with which a client may flood its HTTP/2 connection: they carry little or nothing.

use leno_testkit::frames::{Frames, GET, POST, kind};
use leno_tunnel::TunnelStream;
use leno_tunnel::frame::PADDED;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) type Attacker = Frames<TunnelStream>;

/// The frames of a flood, by number. Stream 1 is a request whose body has not ended.
pub(crate) type Flood = fn(&mut Attacker, u32);

fn window_update(frames: &mut Attacker, stream: u32, increment: u32) {
    frames.queue(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

pub(crate) const FLOODS: [(&str, Flood); 16] = [
    ("PING", |frames, _| frames.queue(kind::PING, 0, 0, &[0; 8])),
    ("PING's answers", |frames, _| frames.queue(kind::PING, 1, 0, &[0; 8])),
    ("SETTINGS", |frames, n| frames.queue(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, (n >> 8) as u8, n as u8])),
    ("SETTINGS of a table's size", |frames, n| frames.queue(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, (n & 15) as u8, 0])),
    ("a stream's WINDOW_UPDATE", |frames, _| window_update(frames, 1, 1)),
    ("the connection's WINDOW_UPDATE", |frames, _| window_update(frames, 0, 1)),
    ("empty DATA (CVE-2019-9518)", |frames, _| frames.queue_data(1, b"", false)),
    ("DATA of one byte", |frames, _| frames.queue_data(1, b"x", false)),
    ("DATA of padding", |frames, _| frames.queue(kind::DATA, PADDED, 1, &[0])),
    ("PRIORITY", |frames, n| frames.queue(2, 0, 2 * n + 1, &[0, 0, 0, 0, 1])),
    ("a kind that nobody knows", |frames, _| frames.queue(0x7e, 0, 0, &[])),
    ("requests given up (CVE-2023-44487)", |frames, n| {
        frames.queue_request(2 * n + 3, GET, END_STREAM);
        frames.queue_reset(2 * n + 3);
    }),
    ("requests to be reset (CVE-2025-8671)", |frames, n| {
        frames.queue_request(2 * n + 3, POST, 0);
        window_update(frames, 2 * n + 3, u32::MAX >> 1);
    }),
    ("requests that are malformed", |frames, n| {
        frames.queue(kind::HEADERS, END_STREAM | END_HEADERS, 2 * n + 3, &[GET, 0x86, 0x84, 0, 1, b'X', 0]);
    }),
    ("headers without end (CVE-2024-27316)", |frames, n| {
        let kind = if n == 0 { kind::HEADERS } else { kind::CONTINUATION };
        frames.queue(kind, 0, 3, &[0, 1, b'a', 1, b'b']);
    }),
    ("cookies in crumbs", |frames, n| {
        // One byte each: an entry of the table that the first request fills.
        let mut block = vec![GET, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b', 0x60, 3, b'a', b'=', b'b'];
        block.extend([0xbe; 4000]);
        frames.queue(kind::HEADERS, END_STREAM | END_HEADERS, 2 * n + 3, &block);
    }),
];
