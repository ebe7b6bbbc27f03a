//! Compares the subscription, at every step, with the simplest implementation, which remembers everything by name.

use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use proptest::prelude::*;

use super::naive::Naive;
use super::tests::Wire;
use super::*;
use crate::Resource;

const TYPES: [&str; 3] = [ADDRESS_TYPE, AUTHORIZATION_TYPE, "type.googleapis.com/other"];
/// Names, and the aliases by which some of these resources can be requested.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "net/1", "net/2", "*"];

type Names = Vec<usize>;

#[derive(Debug, Clone)]
enum Event {
    /// A resource gets this content, reach and alias, or is removed.
    Change(usize, usize, Option<(u8, u8, bool)>),
    /// Many resources of a type get this content, or are removed.
    ChangeMany(usize, Option<u8>),
    Publish,
    Send,
    /// The oldest unanswered response is answered, or an answered one is answered again.
    Answer {
        accept: bool,
        again: bool,
    },
    Subscribe(usize, Names, Names),
    Reconnect {
        by_name: [Option<(Names, Names)>; 3],
        /// What the proxy says it holds: the truth, or nothing, or wrong versions of some resources.
        truly: u8,
    },
    Tick(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let names = || prop::collection::vec(0..NAMES.len(), 0..4);
    let content = (0..3u8, 0..3u8, any::<bool>());
    let by_name = || prop::option::weighted(0.3, (names(), names()));
    prop_oneof![
        8 => (0..3usize, 0..5usize, prop::option::weighted(0.7, content)).prop_map(|(t, n, c)| Event::Change(t, n, c)),
        1 => (0..3usize, prop::option::of(0..3u8)).prop_map(|(t, c)| Event::ChangeMany(t, c)),
        6 => Just(Event::Publish),
        8 => Just(Event::Send),
        10 => (prop::bool::weighted(0.8), prop::bool::weighted(0.1)).prop_map(|(accept, again)| Event::Answer { accept, again }),
        2 => (0..3usize, names(), names()).prop_map(|(t, subscribe, unsubscribe)| Event::Subscribe(t, subscribe, unsubscribe)),
        1 => ([by_name(), by_name(), by_name()], 0..3u8).prop_map(|(by_name, truly)| Event::Reconnect { by_name, truly }),
        2 => (0..3000u16).prop_map(Event::Tick),
    ]
}

fn named(numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|n| NAMES[*n].to_owned()).collect()
}

#[derive(Default)]
struct Both {
    now: Option<Instant>,
    draft: Resources,
    published: Resources,
    new: Subscription,
    plain: Naive,
    unanswered: Vec<DeltaDiscoveryResponse>,
    answered: Vec<DeltaDiscoveryResponse>,
    /// The versions that were sent and accepted, by type and name.
    held: std::collections::BTreeMap<(String, String), String>,
}

impl Both {
    fn now(&self) -> Instant {
        self.now.expect("set")
    }

    fn request(&mut self, request: DeltaDiscoveryRequest) {
        self.new.ask(request.clone(), self.now()).expect("within limits");
        self.plain.request(request, self.now());
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Change(of, name, Some((content, reach, alias))) => {
                let mut resource = Resource::new(content.to_string());
                if of == 1 {
                    resource = resource.with_reach(reach);
                }
                if alias {
                    resource = resource.with_aliases(vec![format!("net/{}", name % 3)]);
                }
                self.draft.upsert(TYPES[of], NAMES[name], resource);
            }
            Event::Change(of, name, None) => drop(self.draft.remove(TYPES[of], NAMES[name])),
            Event::ChangeMany(of, content) => {
                for n in 0..200 {
                    let name = format!("many/{n}");
                    match content {
                        Some(content) => self.draft.upsert(TYPES[of], name, Resource::new(content.to_string())),
                        None => self.draft.remove(TYPES[of], &name),
                    };
                }
            }
            Event::Publish => self.published = self.draft.clone(),
            Event::Send => self.send(),
            Event::Answer { accept, again } => {
                let response = match again {
                    true => self.answered.last().cloned(),
                    false if self.unanswered.is_empty() => None,
                    false => Some(self.unanswered.remove(0)),
                };
                if let Some(response) = response {
                    self.answer(response, accept);
                }
            }
            Event::Subscribe(of, subscribe, unsubscribe) => self.request(DeltaDiscoveryRequest {
                type_url: TYPES[of].to_owned(),
                resource_names_subscribe: named(&subscribe),
                resource_names_unsubscribe: named(&unsubscribe),
                ..Default::default()
            }),
            Event::Reconnect { by_name, truly } => self.connect(by_name, truly),
            Event::Tick(milliseconds) => self.now = Some(self.now() + Duration::from_millis(milliseconds.into())),
        }
        self.compare();
    }

    fn connect(&mut self, by_name: [Option<(Names, Names)>; 3], truly: u8) {
        (self.new, self.plain) = Default::default();
        self.unanswered.clear();
        for (type_url, names) in TYPES.iter().zip(by_name) {
            let (subscribe, unsubscribe) = names.unwrap_or_default();
            let of_type = self.held.iter().filter(|((of, _), _)| of == type_url);
            let held = of_type.enumerate().filter(|_| truly > 0).map(|(n, ((_, name), version))| {
                let version = if truly == 2 && n % 3 == 0 { "0-1".to_owned() } else { version.clone() };
                let name = if truly == 2 && n % 5 == 0 { format!("{name}-gone") } else { name.clone() };
                (name, version)
            });
            self.request(DeltaDiscoveryRequest {
                type_url: (*type_url).to_owned(),
                resource_names_subscribe: named(&subscribe),
                resource_names_unsubscribe: named(&unsubscribe),
                initial_resource_versions: held.collect(),
                ..Default::default()
            });
        }
    }

    fn send(&mut self) {
        loop {
            let found = self.new.say(&self.published, self.now());
            let wanted = self.plain.next(&self.published, self.now());
            assert_eq!(found, wanted);
            let Some(response) = found else { return };
            self.unanswered.push(response);
        }
    }

    fn answer(&mut self, response: DeltaDiscoveryResponse, accept: bool) {
        if accept {
            for name in &response.removed_resources {
                self.held.remove(&(response.type_url.clone(), name.clone()));
            }
            for resource in &response.resources {
                let key = (response.type_url.clone(), resource.name.clone());
                self.held.insert(key, resource.version.clone());
            }
        }
        self.request(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: (!accept).then(Status::default),
            ..Default::default()
        });
        self.answered.push(response);
    }

    fn compare(&self) {
        assert_eq!(self.new.in_sync(), self.plain.in_sync());
        assert_eq!(self.new.wake_at(self.now()), self.plain.wake_at(self.now()));
    }

    fn compare_progress(&self) {
        let of = |p: TypeProgress| (p.type_url, p.resources, p.acked, p.nacked, p.in_sync);
        assert_eq!(self.new.progress().into_iter().map(of).collect::<Vec<_>>(), self.plain.progress());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_same_at_every_step(events in prop::collection::vec(event(), 1..120)) {
        let mut both = Both { now: Some(Instant::now()), ..Both::default() };
        both.connect([None, None, None], 0);
        for event in events {
            both.event(event);
        }
        both.event(Event::Send);
        both.compare_progress();
    }
}
