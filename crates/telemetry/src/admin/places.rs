//! Limits how many requests are served at a time.
//!
//! Pods can reach the metrics and readiness ports, and a slow client there must not keep the kubelet's probe or a
//! scrape waiting. So nobody waits for a place. If all are taken, a new connection gets the place that the client with the
//! most places has held longest. Clients that are sending their request and clients that read their response have
//! separate places.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::one_host;

/// Most connections whose request is not complete. Each holds up to a request's head and body.
const ASKING: usize = 64;

/// Most connections that are sent their response. Each holds up to a scrape, which can be megabytes.
const ANSWERED: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asking,
    Answered,
}

/// The places of one port.
#[derive(Default)]
pub(super) struct Places {
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The places of both stages, in the order in which they were taken.
    places: Vec<Entry>,
    next: u64,
}

struct Entry {
    number: u64,
    client: IpAddr,
    stage: Stage,
    lost: Arc<Notify>,
}

impl Places {
    /// A place for a client that has connected.
    pub(super) fn take(self: &Arc<Self>, client: IpAddr) -> Place {
        let client = one_host(client);
        let lost = Arc::new(Notify::new());
        let mut taken = self.taken.lock();
        taken.make_room(Stage::Asking, ASKING);
        let number = taken.next;
        taken.next += 1;
        taken.places.push(Entry { number, client, stage: Stage::Asking, lost: lost.clone() });
        Place { places: self.clone(), number, lost }
    }
}

impl Taken {
    fn make_room(&mut self, stage: Stage, most: usize) {
        let of = |stage| self.places.iter().filter(move |entry| entry.stage == stage);
        if of(stage).count() < most {
            return;
        }
        let share = |client| of(stage).filter(|entry| entry.client == client).count();
        // The first of equals; `max_by_key` takes the last.
        let greediest = of(stage).rev().max_by_key(|entry| share(entry.client)).map(|entry| entry.client);
        let first = self.places.iter().position(|entry| entry.stage == stage && Some(entry.client) == greediest);
        if let Some(first) = first {
            self.places.remove(first).lost.notify_one();
        }
    }
}

/// A place. Dropping it frees it.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    lost: Arc<Notify>,
}

impl Place {
    /// The client's request is complete.
    pub(super) fn asked(&self) {
        let mut taken = self.places.taken.lock();
        // Unless the place belongs to another connection by now.
        let Some(at) = taken.places.iter().position(|entry| entry.number == self.number) else { return };
        let mut entry = taken.places.remove(at);
        entry.stage = Stage::Answered;
        taken.make_room(Stage::Answered, ANSWERED);
        taken.places.push(entry);
    }

    /// Resolves when the place was given to another connection.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().places.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn is_lost(places: &Arc<Places>, place: &Place) -> bool {
        !places.taken.lock().places.iter().any(|entry| entry.number == place.number)
    }

    #[test]
    fn the_greediest_gives_way_by_its_first_place() {
        let places = Arc::<Places>::default();
        let probe = places.take(client(1));
        let greedy: Vec<_> = (0..2 * ASKING).map(|_| places.take(client(2))).collect();
        assert!(!is_lost(&places, &probe));
        let lost = greedy.iter().filter(|place| is_lost(&places, place)).count();
        assert_eq!(lost, ASKING + 1);
        assert!(greedy[..lost].iter().all(|place| is_lost(&places, place)), "the first ones");
        // Another who comes takes from it, too; and of clients with as many, the one that came first.
        let second = places.take(client(3));
        assert!(is_lost(&places, &greedy[lost]) && !is_lost(&places, &probe));
        drop(greedy);
        let others: Vec<_> = (4..).map(|number| places.take(client(number))).take(ASKING - 1).collect();
        assert!(is_lost(&places, &probe) && !is_lost(&places, &second));
        assert!(!others.iter().any(|place| is_lost(&places, place)));
    }

    #[test]
    fn whoever_asks_slowly_takes_no_place_from_those_that_are_answered() {
        let places = Arc::<Places>::default();
        let scrape = places.take(client(1));
        scrape.asked();
        let slow: Vec<_> = (0..=ASKING as u8).map(|number| places.take(client(number))).collect();
        assert!(!is_lost(&places, &scrape) && is_lost(&places, &slow[0]));
        let unread = (0..2 * ANSWERED).map(|_| places.take(client(2))).inspect(Place::asked);
        let _unread: Vec<_> = unread.collect();
        assert!(!is_lost(&places, &scrape));
        assert_eq!(places.taken.lock().places.iter().filter(|entry| entry.stage == Stage::Answered).count(), ANSWERED);
    }

    #[test]
    fn one_hosts_addresses_share() {
        let of = |text: &str| one_host(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
