//! Authenticated peers that send too much of something.

use leno_testkit::frames::{Frames, kind};
use leno_testkit::hbone;
use leno_testkit::network::may_run;

use crate::support::soon;
use crate::{ALONE, GOOD, STREAMS, Target, memory};

/// Memory that an attack may leave behind: what allocators keep, and the attacker is in this
/// process as well.
const LEFT: usize = 32 << 20;

#[tokio::test]
async fn ten_thousand_streams_get_two_hundred() {
    if !may_run("ten_thousand_streams_get_two_hundred") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let before = memory();
    let mut frames = target.frames().await;
    let authority = target.authority();
    for index in 0..10_000u32 {
        frames.queue_connect(2 * index + 1, authority.as_bytes());
        if frames.queued() > 64 << 10 && frames.flush().await.is_err() {
            break;
        }
    }
    // The server may have closed already; then it has said why.
    let _ = frames.flush().await;
    let (mut accepted, mut refused, mut last) = (0, 0, None);
    let count = async {
        while let Some(frame) = frames.next().await {
            match frame.kind {
                kind::HEADERS if frame.payload.first() == Some(&0x88) => accepted += 1,
                kind::RST_STREAM => refused += 1,
                kind::GOAWAY => last = frame.error_code(),
                _ => {}
            }
            if accepted + refused == 10_000 {
                return;
            }
        }
    };
    soon("all streams to be answered", count).await;
    assert!(accepted <= STREAMS, "{accepted} streams at once");
    // ENHANCE_YOUR_CALM, if it did not just refuse them one by one.
    assert!(refused + accepted == 10_000 || last == Some(11), "{accepted} {refused} {last:?}");
    // With the attacker still connected, if it is.
    target.good_peer_is_served().await;
    if last.is_some() {
        target.log.line(&["tunnel to", "ENHANCE_YOUR_CALM", GOOD]).await;
    }
    drop(frames);
    target.is_unharmed().await;
    let grown = memory().saturating_sub(before);
    assert!(grown < LEFT, "{grown} bytes more");
}

#[tokio::test]
async fn rapid_reset_ends_the_connection() {
    if !may_run("rapid_reset_ends_the_connection") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let before = memory();
    let mut frames = target.frames().await;
    let authority = target.authority();
    for index in 0..10_000u32 {
        frames.queue_connect(2 * index + 1, authority.as_bytes());
        frames.queue_reset(2 * index + 1);
        if frames.queued() > 64 << 10 && frames.flush().await.is_err() {
            break;
        }
    }
    let _ = frames.flush().await;
    let code = async {
        while let Some(frame) = frames.next().await {
            if frame.kind == kind::GOAWAY {
                return frame.error_code();
            }
        }
        None
    };
    assert_eq!(soon("the connection to be closed", code).await, Some(11), "ENHANCE_YOUR_CALM");
    target.log.line(&["tunnel to", "ENHANCE_YOUR_CALM", GOOD]).await;
    target.is_unharmed().await;
    let grown = memory().saturating_sub(before);
    assert!(grown < LEFT, "{grown} bytes more");
}

/// The frames of a flood, by number.
type Flood = fn(&mut Frames<hbone::Tls>, u32);

#[tokio::test]
async fn a_flood_of_frames_is_borne_or_ended() {
    if !may_run("a_flood_of_frames_is_borne_or_ended") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let authority = target.authority();
    let before = memory();
    let floods: [(&str, Flood); 9] = [
        ("PING", |frames, _| frames.queue(kind::PING, 0, 0, &[0; 8])),
        ("SETTINGS", |frames, n| frames.queue(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, (n >> 8) as u8, n as u8])),
        ("empty DATA", |frames, _| frames.queue_data(1, b"", false)),
        ("DATA of one byte", |frames, _| frames.queue_data(1, b"x", false)),
        ("WINDOW_UPDATE of nothing", |frames, _| frames.queue(kind::WINDOW_UPDATE, 0, 1, &[0; 4])),
        ("WINDOW_UPDATE of too much", |frames, _| frames.queue(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("CONTINUATION", |frames, n| {
            let kind = if n == 0 { kind::HEADERS } else { kind::CONTINUATION };
            frames.queue(kind, 0, 3, &[0, 1, b'a', 1, b'b']);
        }),
        ("PRIORITY", |frames, n| frames.queue(2, 0, 2 * n + 1, &[0, 0, 0, 0, 1])),
        ("RST_STREAM of nothing", |frames, n| frames.queue_reset(2 * n + 3)),
    ];
    for (what, flood) in floods {
        let mut frames = target.frames().await;
        frames.queue_connect(1, authority.as_bytes());
        frames.flush().await.unwrap();
        let answer = soon("the answer", frames.next()).await.unwrap();
        assert_eq!((answer.kind, answer.payload.first()), (kind::HEADERS, Some(&0x88)), "{what}");
        let sending = async {
            for n in 0..20_000 {
                flood(&mut frames, n);
                if frames.queued() > 16 << 10 && frames.flush().await.is_err() {
                    return;
                }
            }
            let _ = frames.flush().await;
        };
        // Other peers are served meanwhile.
        soon(what, async { tokio::join!(sending, target.good_peer_is_served()) }).await;
        target.good_peer_is_served().await;
        drop(frames);
    }
    target.is_unharmed().await;
    let grown = memory().saturating_sub(before);
    assert!(grown < LEFT, "{grown} bytes more");
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_not_sent_everything() {
    if !may_run("a_peer_that_reads_nothing_is_not_sent_everything") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::without_program().await;
    let listener = target.pod.listen();
    let before = memory();
    let peer = target.peer().await;
    let mut held = Vec::new();
    for _ in 0..STREAMS / 4 {
        let authority = target.authority();
        let (answer, accepted) = tokio::join!(peer.connect(&authority), listener.accept());
        let (program, _) = accepted.unwrap();
        // As much as goes, for a caller that never takes a byte of it.
        let chunk = vec![7; 256 << 10];
        while program.try_write(&chunk).is_ok() {}
        held.push((answer.unwrap(), program));
    }
    for (_, program) in &held {
        let chunk = vec![7; 256 << 10];
        while program.try_write(&chunk).is_ok() {}
    }
    // The windows hold what the peer has allowed: 64 KiB in all, and the proxy keeps a bounded
    // rest for each.
    let grown = memory().saturating_sub(before);
    assert!(grown < (STREAMS / 4) * (512 << 10), "{grown} bytes for a peer that reads nothing");
    drop((held, peer, listener));
    crate::support::echo(target.pod.listen());
    target.good_peer_is_served().await;
}
