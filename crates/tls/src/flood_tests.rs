//! Floods of records without data: each ends where the TLS library would end it, and meanwhile the thread's other
//! connections have their turns.

use super::*;

/// Records that a flood can consist of. None of them breaks a rule by itself.
fn fruitless() -> Vec<(&'static str, Sent)> {
    vec![
        ("KeyUpdate", Sent::KeyUpdate(0)),
        ("KeyUpdate that asks for one", Sent::KeyUpdate(1)),
        ("KeyUpdate in two records", Sent::SplitKeyUpdate),
        ("empty data", Sent::Inner(vec![23])),
        ("padding", Sent::Padded(0, 16_000)),
        ("user_canceled", Sent::Inner(vec![1, 90, 21])),
        ("data of one byte", Sent::Data(1)),
        ("padded data of one byte", Sent::Padded(1, 16_000)),
    ]
}

/// Up to the library's limit of each kind, and beyond it.
const LENGTHS: [usize; 7] = [4, 5, 31, 32, 33, 34, 70];

#[test]
fn each_flood_ends_where_the_library_ends_it() {
    for (what, sent) in fruitless() {
        let ends_at = |wanted: usize| {
            let mut sent = vec![sent.clone(); wanted];
            sent.push(close());
            compare(&sent, &Damage::default()).1
        };
        let ended: Vec<Option<String>> = LENGTHS.into_iter().map(ends_at).collect();
        let borne =
            LENGTHS.into_iter().zip(&ended).filter(|(_, ended)| ended.is_none()).map(|(length, _)| length).max();
        let expected = match what {
            "user_canceled" => 4,
            "data of one byte" | "padded data of one byte" => 70,
            _ => 32,
        };
        assert_eq!(borne, Some(expected), "{what}: {ended:?}");
    }
}

#[test]
fn one_flood_beside_another_ends_where_the_library_ends_it() {
    let kinds = fruitless();
    for (_, one) in &kinds {
        for (_, other) in &kinds {
            // Alternating, and the second kind after the first has nearly reached its limit.
            let by_turns = (0..80).map(|n| if n % 2 == 0 { one } else { other }).cloned().collect::<Vec<_>>();
            let nearly = [vec![one.clone(); 32], vec![other.clone(); 2], vec![one.clone(); 33]].concat();
            for mut sent in [by_turns, nearly] {
                sent.push(close());
                compare_with(SUITES[0], &sent, &Damage::default());
            }
        }
    }
}

/// Tokio lets a task read and write only so often in one turn. The wrong record is read at the end of such a turn.
#[test]
fn an_alert_is_sent_also_at_the_end_of_a_long_turn() {
    let mut sent = vec![Sent::KeyUpdate(1); 3];
    sent.extend(vec![Sent::Padded(0, 16_000); 30]);
    sent.extend([Sent::KeyUpdate(0), Sent::KeyUpdate(0), Sent::KeyUpdate(1), Sent::KeyUpdate(1)]);
    sent.extend([Sent::Inner(vec![1, 90, 21]), Sent::Inner(vec![1, 90, 21]), Sent::KeyUpdate(2)]);
    compare_with(SUITES[0], &sent, &Damage::default());
}

fn any_flood() -> impl Strategy<Value = Vec<Sent>> {
    let piece = (proptest::sample::select(fruitless()), prop_oneof![1usize..4, 30usize..35])
        .prop_map(|((_, sent), times)| vec![sent; times]);
    proptest::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_mixture_ends_alike(sent in any_flood(), what in any::<bool>()) {
        let mut sent = sent;
        // A wrong record at the end: which of two faults is reported matters as well.
        sent.push(if what { close() } else { Sent::KeyUpdate(2) });
        compare_with(SUITES[0], &sent, &Damage::default());
    }
}

/// A transport that always has more bytes, and counts those that are read.
struct Endless {
    record: Box<dyn FnMut() -> Vec<u8> + Send>,
    rest: Vec<u8>,
    taken: usize,
}

impl AsyncRead for Endless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.rest.len() < buf.remaining() {
            let record = (this.record)();
            this.rest.extend_from_slice(&record);
        }
        let length = buf.remaining();
        buf.put_slice(&this.rest[..length]);
        this.rest.drain(..length);
        this.taken += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Records that a peer may send without end; the library does not end such a connection either.
fn endless() -> Vec<(&'static str, Vec<Sent>)> {
    vec![
        ("empty data and KeyUpdates", vec![Sent::Inner(vec![23]), Sent::KeyUpdate(0)]),
        ("one byte of data and KeyUpdates", [vec![Sent::Data(1)], vec![Sent::KeyUpdate(1); 32]].concat()),
        ("one byte of data and empty data", [vec![Sent::Data(1)], vec![Sent::Inner(vec![23]); 32]].concat()),
        ("data of one byte", vec![Sent::Data(1)]),
        ("padded data of one byte", vec![Sent::Padded(1, 16_000)]),
        ("data", vec![Sent::Data(16_384)]),
    ]
}

/// Most bytes that may be read in one turn: what Tokio's budget allows a task, and one large read.
const TURN: usize = (1 << 20) + (256 << 10);

/// Most records that may be opened in one turn, however few bytes they have.
const RECORDS: u64 = 129;

#[test]
fn a_flood_leaves_each_turn_to_the_others() {
    for (what, sent) in endless() {
        block_on(async {
            let (client, server) = {
                let identity = identity(SUITES[0]);
                let (near, far) = duplex(1 << 20);
                let expected = [NAME.parse().unwrap()];
                tokio::join!(identity.connect(near, &expected, TIMEOUT), identity.accept(far, TIMEOUT))
            };
            let (mut client, TlsStream { keys, .. }) = (client.unwrap().0, server.unwrap().0);
            let record = Box::new(move || sealed(&mut client, &sent));
            let mut server = TlsStream::new(Endless { record, rest: Vec::new(), taken: 0 }, *keys, &[], None);
            // A caller that never stops by itself.
            let mut room = vec![0; 256 << 10];
            let mut turns = Vec::new();
            let flooded = poll_fn(|cx| {
                let (before, opened) = (server.io.taken, server.keys.opening.sequence());
                while let Poll::Ready(read) = Pin::new(&mut server).poll_read(cx, &mut ReadBuf::new(&mut room)) {
                    read.unwrap();
                    assert!(server.io.taken - before < 64 << 20, "{what}: a turn without end");
                }
                turns.push(server.io.taken - before);
                // New keys start the count again.
                let opened = server.keys.opening.sequence().saturating_sub(opened);
                assert!(opened <= RECORDS, "{what}: {opened} records");
                if turns.len() < 4 { Poll::Pending } else { Poll::Ready(()) }
            });
            // Nobody else wakes it.
            tokio::time::timeout(TIMEOUT, flooded).await.unwrap();
            assert!(turns.iter().all(|taken| *taken <= TURN), "{what}: {turns:?} bytes");
            assert!(turns.iter().sum::<usize>() > 0, "{what}: nothing at all");
        });
    }
}
