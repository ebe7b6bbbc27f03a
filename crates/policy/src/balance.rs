//! Which endpoint of a service takes the next request?
//!
//! Of two endpoints drawn at random, the one that will probably answer sooner: what it last took, times the requests that it
//! has open ("peak EWMA"). Endpoints that are far away, that don't answer or that are ejected come later.

use std::cmp::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

/// An estimate loses all but a third (1/e) of its weight in this time, seconds. An endpoint that was slow, and so is avoided,
/// is tried again after some multiple of it.
pub const DECAY: f32 = 10.0;

/// What an endpoint is taken to need before anything is known of its service.
pub const START: Duration = Duration::from_millis(1);

/// A failure counts as an answer that took this long, so that an endpoint which fails at once does not look fast.
pub const FAILURE: Duration = Duration::from_secs(10);

/// What a failure to connect makes of an estimate at once, because nothing can be had of the endpoint.
pub const UNREACHABLE: Duration = Duration::from_secs(1);

/// Nothing is faster than this, seconds. Without a least value, endpoints that are never measured would stay as far apart as
/// they once were.
const LEAST: f32 = 50e-6;

/// Ticks in a second of the clock by which estimates are dated.
pub const TICKS: f32 = 16384.0;

/// How long an endpoint takes to answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    seconds: f32,
    /// In ticks, from any moment on. It wraps after three days.
    at: u32,
}

impl Estimate {
    /// Of an endpoint that has not answered yet.
    pub fn new(took: Duration, at: u32) -> Self {
        Self { seconds: took.as_secs_f32(), at }
    }

    /// From [`Self::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        let (high, low) = ((bits >> 32) as u32, (bits & u64::from(u32::MAX)) as u32);
        Self { seconds: f32::from_bits(high), at: low }
    }

    /// As one number, which an atomic can hold.
    pub fn to_bits(self) -> u64 {
        u64::from(self.seconds.to_bits()) << 32 | u64::from(self.at)
    }

    /// The estimate at a later time, seconds. It fades, so that an endpoint which was slow gets another chance.
    pub fn seconds(self, at: u32) -> f32 {
        (self.seconds * self.kept(at)).max(LEAST)
    }

    /// The share of the estimate that is left.
    fn kept(self, at: u32) -> f32 {
        let since = at.wrapping_sub(self.at);
        // Threads read the clock one after the other and write in another order.
        if since > u32::MAX / 2 { 1.0 } else { (-(since as f32) / TICKS / DECAY).exp() }
    }

    /// It has answered. A slower answer than expected counts at once, a faster one little by little.
    #[must_use]
    pub fn answered(self, took: Duration, at: u32) -> Self {
        let took = took.as_secs_f32();
        let kept = self.kept(at);
        let seconds = if took > self.seconds { took } else { self.seconds * kept + took * (1.0 - kept) };
        Self { seconds, at }
    }

    /// It has answered that it failed, which counts by its share of the last seconds' answers: one failure in a thousand answers
    /// is not worth avoiding the endpoint.
    #[must_use]
    pub fn failed(self, at: u32) -> Self {
        let kept = self.kept(at);
        Self { seconds: self.seconds * kept + FAILURE.as_secs_f32() * (1.0 - kept), at }
    }

    /// It has taken at least this long, and nobody knows how much more.
    #[must_use]
    pub fn at_least(self, took: Duration, at: u32) -> Self {
        if took.as_secs_f32() > self.seconds(at) { Self::new(took, at) } else { self }
    }
}

/// What is known of an endpoint at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing is wrong with it.
    Well,
    /// It failed too often of late.
    Ejected,
    /// It does not answer.
    Silent,
}

/// What the caller knows of endpoints, by their place in [`Endpoints`].
pub trait Seen {
    /// Whether all are well, as far as that can be told without a look at each.
    fn all_well(&self) -> bool;
    /// What is known of one.
    fn state(&self, place: usize) -> State;
    /// What a request there costs: its estimate, times the requests that are open with the new one.
    fn cost(&self, place: usize) -> f32;
}

/// How an endpoint is chosen among those that are equally good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The cheaper one of two at random.
    Cost,
    /// One at random.
    Random,
    /// One after the other.
    Turn(u64),
    /// By what the request carries: equal values go to the same endpoint, and few of them move when endpoints come and go.
    Hash(u64),
}

/// The endpoints of a service, as far as choosing among them needs to know.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    /// The sums of the weights up to and with each.
    sums: Vec<u64>,
    /// The end of each group of endpoints that are equally close, the closest first.
    groups: SmallVec<[usize; 2]>,
    ids: Vec<u64>,
}

/// An endpoint to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Higher is closer.
    pub rank: usize,
    /// Its share, relative to the others.
    pub weight: u32,
    /// What tells it from others, the same in all waypoints.
    pub id: u64,
}

/// Places that may be chosen, with their weights.
type Places = SmallVec<[(usize, u64); 16]>;

impl Endpoints {
    /// For these, which must be in the order of their ranks, the closest first.
    pub fn new(all: impl IntoIterator<Item = Endpoint>) -> Self {
        let mut it = Self::default();
        let (mut sum, mut last) = (0, None);
        for (place, one) in all.into_iter().enumerate() {
            sum += u64::from(one.weight.max(1));
            it.sums.push(sum);
            it.ids.push(one.id);
            if last == Some(one.rank)
                && let Some(end) = it.groups.last_mut()
            {
                *end = place + 1;
            } else {
                it.groups.push(place + 1);
            }
            last = Some(one.rank);
        }
        it
    }

    /// What tells the one at this place from others.
    pub fn id(&self, place: usize) -> u64 {
        self.ids[place]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Chooses one that is not among `tried`; `None` if there is none.
    ///
    /// Only the closest are chosen from while at least `panic` of a hundred of them are well; otherwise also the next ones. If
    /// fewer of all are well, those that are well could not bear the load, and ejections don't count.
    pub fn choose(
        &self,
        by: By,
        seen: &impl Seen,
        tried: &[usize],
        panic: u32,
        random: &mut dyn FnMut() -> u64,
    ) -> Option<usize> {
        if tried.is_empty() && seen.all_well() {
            let end = *self.groups.first()?;
            return match by {
                By::Cost if end > 1 => {
                    let (one, other) = self.two(end, random);
                    Some(cheaper(one, other, seen))
                }
                By::Cost => Some(0),
                By::Random => Some(self.at(end, random())),
                By::Turn(turn) => Some(self.at(end, turn)),
                By::Hash(hash) => self.by_hash(hash, 0..end),
            };
        }
        let places = self.places(seen, tried, panic);
        self.among(&places, by, seen, random)
    }

    fn weight(&self, place: usize) -> u64 {
        self.sums[place] - place.checked_sub(1).map_or(0, |before| self.sums[before])
    }

    /// The place of a ticket among the first `end`.
    fn at(&self, end: usize, ticket: u64) -> usize {
        let ticket = ticket % self.sums[end - 1];
        self.sums[..end].partition_point(|sum| *sum <= ticket)
    }

    /// Two of the first `end`, at random; twice the same, if it has most of the weight.
    fn two(&self, end: usize, random: &mut dyn FnMut() -> u64) -> (usize, usize) {
        let drawn = random();
        if self.sums[end - 1] == end as u64 {
            let one = (drawn >> 32) as usize % end;
            let other = (drawn as u32) as usize % (end - 1);
            return (one, other + usize::from(other >= one));
        }
        let one = self.at(end, drawn);
        let other = self.at(end, random());
        (one, if other == one { self.at(end, random()) } else { other })
    }

    /// The places to choose from where not all are well, or some were tried.
    fn places(&self, seen: &impl Seen, tried: &[usize], panic: u32) -> Places {
        let mut places = Places::new();
        let (mut begin, mut well) = (0, 0);
        let enough = |well: usize, of: usize| well * 100 >= panic as usize * of;
        let first = self.groups.first().copied().unwrap_or_default();
        for end in &self.groups {
            for place in begin..*end {
                if seen.state(place) == State::Well {
                    well += 1;
                    if !tried.contains(&place) {
                        places.push((place, self.weight(place)));
                    }
                }
            }
            begin = *end;
            if enough(well, first) && !places.is_empty() {
                return places;
            }
        }
        let others = |places: &mut Places, state| {
            let more = (0..self.len()).filter(|place| seen.state(*place) == state && !tried.contains(place));
            places.extend(more.map(|place| (place, self.weight(place))));
        };
        if !enough(well, self.len()) || places.is_empty() {
            others(&mut places, State::Ejected);
        }
        if places.is_empty() {
            others(&mut places, State::Silent);
        }
        places
    }

    fn among(&self, places: &Places, by: By, seen: &impl Seen, random: &mut dyn FnMut() -> u64) -> Option<usize> {
        let total: u64 = places.iter().map(|(_, weight)| weight).sum();
        let at = |ticket: u64| {
            let mut left = ticket.checked_rem(total)?;
            let hit = places.iter().find(|(_, weight)| {
                let hit = left < *weight;
                left = left.saturating_sub(*weight);
                hit
            });
            hit.map(|(place, _)| *place)
        };
        match by {
            By::Random => at(random()),
            By::Turn(turn) => at(turn),
            By::Hash(hash) => self.by_hash(hash, places.iter().map(|(place, _)| *place)),
            By::Cost => {
                let one = at(random())?;
                let mut other = at(random())?;
                if other == one {
                    other = at(random())?;
                }
                Some(cheaper(one, other, seen))
            }
        }
    }

    /// Rendezvous hashing: each endpoint has a number for each value, and the highest one wins. With an endpoint, only the
    /// values that it had won move.
    fn by_hash(&self, hash: u64, places: impl IntoIterator<Item = usize>) -> Option<usize> {
        let score = |place: usize| {
            let mixed = mix(hash ^ self.ids[place]);
            // In proportion to weights: the weight, over the negative logarithm of a number between 0 and 1.
            let share = (mixed >> 11) as f64 / (1u64 << 53) as f64;
            self.weight(place) as f64 / -(share.max(f64::MIN_POSITIVE)).ln()
        };
        let all = places.into_iter().map(|place| (score(place), place));
        all.max_by(|one, other| one.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)).map(|(_, place)| place)
    }
}

fn cheaper(one: usize, other: usize, seen: &impl Seen) -> usize {
    if one != other && seen.cost(other) < seen.cost(one) { other } else { one }
}

/// A number in which every bit of `value` counts for every bit (splitmix64).
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The number of some bytes (FNV-1a): the same in every waypoint, and in every version of the standard library.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)))
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
