use super::*;
use crate::test_support::numbers;

/// What a test knows of endpoints.
struct Known {
    states: Vec<State>,
    costs: Vec<f32>,
}

impl Known {
    fn well(count: usize) -> Self {
        Self { states: vec![State::Well; count], costs: vec![1.0; count] }
    }

    fn but(mut self, place: usize, state: State) -> Self {
        self.states[place] = state;
        self
    }
}

impl Seen for Known {
    fn all_well(&self) -> bool {
        self.states.iter().all(|state| *state == State::Well)
    }

    fn state(&self, place: usize) -> State {
        self.states[place]
    }

    fn cost(&self, place: usize) -> f32 {
        self.costs[place]
    }
}

fn endpoints(ranks_and_weights: &[(usize, u32)]) -> Endpoints {
    let one = |(place, (rank, weight)): (usize, &(usize, u32))| Endpoint {
        rank: *rank,
        weight: *weight,
        id: mix(place as u64 + 1),
    };
    Endpoints::new(ranks_and_weights.iter().enumerate().map(one))
}

fn equal(count: usize) -> Endpoints {
    endpoints(&vec![(0, 1); count])
}

/// How often each is chosen in 10 000 times.
fn counts(of: &Endpoints, by: By, seen: &Known, tried: &[usize]) -> Vec<usize> {
    let mut random = numbers(7);
    let mut counts = vec![0; of.len()];
    for turn in 0..10_000 {
        let by = if matches!(by, By::Turn(_)) { By::Turn(turn) } else { by };
        if let Some(place) = of.choose(by, seen, tried, 50, &mut random) {
            counts[place] += 1;
        }
    }
    counts
}

fn ticks(seconds: f32) -> u32 {
    (seconds * TICKS) as u32
}

#[test]
fn an_estimate_rises_at_once_and_falls_slowly() {
    let start = Estimate::new(START, 0);
    let slow = start.answered(Duration::from_millis(500), ticks(0.001));
    assert!((slow.seconds(ticks(0.001)) - 0.5).abs() < 1e-6);
    let one_fast = slow.answered(Duration::from_millis(1), ticks(0.011));
    assert!(one_fast.seconds(ticks(0.011)) > 0.49, "{one_fast:?}");
    let mut many = slow;
    for hundredth in 1..=5_000 {
        many = many.answered(Duration::from_millis(1), ticks(hundredth as f32 / 100.0));
    }
    assert!((0.001..0.006).contains(&many.seconds(ticks(50.0))), "{many:?}");
    assert_eq!(Estimate::from_bits(many.to_bits()), many);
}

#[test]
fn estimates_are_means_in_which_what_is_new_has_the_share_that_faded() {
    for seconds in [0.0, 0.5, 3.0, 10.0, 30.0] {
        let at = ticks(seconds);
        let kept = (-seconds / DECAY).exp();
        let known = Estimate::new(Duration::from_secs(4), 0);
        let near = |estimate: Estimate, expected: f32| {
            let found = estimate.seconds(at);
            assert!((found - expected).abs() < 1e-3, "{seconds}: {found}, not {expected}");
        };
        near(known.answered(Duration::from_secs(1), at), 4.0 * kept + (1.0 - kept));
        near(known.answered(Duration::from_secs(5), at), 5.0);
        near(known.failed(at), 4.0 * kept + 10.0 * (1.0 - kept));
    }
}

#[test]
fn a_date_that_is_as_far_ahead_as_behind_is_a_past_one() {
    let known = Estimate::new(Duration::from_secs(1), 0);
    let half = u32::MAX / 2;
    assert_eq!((known.seconds(half), known.seconds(half + 1)), (LEAST, 1.0));
}

#[test]
fn an_endpoint_that_was_slow_is_tried_again_some_day() {
    let slow = Estimate::new(Duration::from_secs(1), 0);
    let after = |seconds| slow.seconds(ticks(seconds));
    assert!((0.36..0.38).contains(&after(10.0)) && after(200.0) == LEAST);
    let early = Estimate::new(Duration::from_secs(1), 100);
    assert!((early.seconds(90) - 1.0).abs() < 1e-6, "a date in the future fades nothing");
}

#[test]
fn failing_at_once_does_not_look_fast() {
    // Each answers a hundred times a second: one in 5 ms, the other fails in no time.
    let (mut good, mut bad) = (Estimate::new(START, 0), Estimate::new(START, 0));
    for hundredth in 1..=100 {
        let at = ticks(hundredth as f32 / 100.0);
        good = good.answered(Duration::from_millis(5), at);
        bad = bad.failed(at);
    }
    let at = ticks(1.0);
    assert!(bad.seconds(at) > 100.0 * good.seconds(at), "{bad:?} {good:?}");
    // One failure in a thousand at this rate is hardly seen.
    let rare = good.failed(ticks(1.01));
    assert!(rare.seconds(ticks(1.01)) < 0.02, "{rare:?}");
    // What was waited for counts, whoever gave up.
    let waited = good.at_least(Duration::from_secs(2), at);
    assert!((waited.seconds(at) - 2.0).abs() < 1e-6);
    assert_eq!(good.at_least(Duration::from_millis(1), at), good);
}

#[test]
fn of_two_the_cheaper_one_is_chosen() {
    let mut seen = Known::well(4);
    seen.costs = vec![1.0, 2.0, 3.0, 4.0];
    let all = counts(&equal(4), By::Cost, &seen, &[]);
    // The cheapest of four is in half of all pairs, the most expensive wins none.
    assert!((4_700..5_300).contains(&all[0]) && all[3] == 0 && all[0] > all[1] && all[1] > all[2], "{all:?}");
    // The same where one of five is out, of which twice the same is drawn now and then.
    let without = Known { costs: vec![1.0, 2.0, 3.0, 4.0, 0.1], ..Known::well(5).but(4, State::Ejected) };
    let rest = counts(&equal(5), By::Cost, &without, &[]);
    assert!((4_550..5_150).contains(&rest[0]) && rest[4] == 0, "{rest:?}");
    let level = counts(&equal(4), By::Cost, &Known::well(4), &[]);
    assert!(level.iter().all(|count| (2_200..2_800).contains(count)), "{level:?}");
    let one = counts(&equal(1), By::Cost, &Known::well(1), &[]);
    assert_eq!(one, [10_000]);
    assert_eq!(equal(0).choose(By::Cost, &Known::well(0), &[], 50, &mut numbers(1)), None);
}

#[test]
fn weights_count() {
    let of = endpoints(&[(0, 1), (0, 3)]);
    for by in [By::Random, By::Turn(0)] {
        let all = counts(&of, by, &Known::well(2), &[]);
        assert!((2_300..2_700).contains(&all[0]), "{by:?} {all:?}");
    }
    // Of two draws, twice the same is drawn now and then, and then once more.
    let priced = Known { costs: vec![1.0, 2.0, 3.0], ..Known::well(3) };
    let cheapest = counts(&endpoints(&[(0, 1), (0, 1), (0, 2)]), By::Cost, &priced, &[])[0];
    assert!((4_900..5_400).contains(&cheapest), "{cheapest}");
    // Where all cost the same, the first of the two counts.
    let of_three = counts(&endpoints(&[(0, 1), (0, 1), (0, 8)]), By::Cost, &Known::well(3), &[]);
    assert!((800..1_200).contains(&of_three[0]) && (7_700..8_300).contains(&of_three[2]), "{of_three:?}");
    let mut by_hash = [0; 2];
    for value in 0..10_000 {
        let place = of.choose(By::Hash(mix(value)), &Known::well(2), &[], 50, &mut numbers(1));
        by_hash[place.expect("one")] += 1;
    }
    assert!((2_300..2_700).contains(&by_hash[0]), "{by_hash:?}");
}

#[test]
fn the_closest_are_chosen_while_enough_of_them_are_well() {
    let of = endpoints(&[(2, 1), (2, 1), (2, 1), (1, 1), (1, 1)]);
    let near = counts(&of, By::Cost, &Known::well(5), &[]);
    assert_eq!(near[3..], [0, 0]);
    let one_out = counts(&of, By::Cost, &Known::well(5).but(0, State::Ejected), &[]);
    assert!(one_out[0] == 0 && one_out[3..] == [0, 0], "{one_out:?}");
    let two_out = Known::well(5).but(0, State::Ejected).but(1, State::Silent);
    let spilt = counts(&of, By::Cost, &two_out, &[]);
    assert!(spilt[..2] == [0, 0] && spilt[2..].iter().all(|count| *count > 2_000), "{spilt:?}");
    let tried = counts(&of, By::Cost, &Known::well(5), &[0, 1, 2]);
    assert!(tried[..3] == [0, 0, 0] && tried[3] > 4_000, "{tried:?}");
}

#[test]
fn ejections_do_not_count_if_too_few_are_left() {
    let of = equal(5);
    let mut seen = Known::well(5);
    for place in 0..2 {
        seen.states[place] = State::Ejected;
    }
    let three_left = counts(&of, By::Random, &seen, &[]);
    assert_eq!(three_left[..2], [0, 0]);
    seen.states[2] = State::Ejected;
    let two_left = counts(&of, By::Random, &seen, &[]);
    assert!(two_left.iter().all(|count| *count > 1_500), "{two_left:?}");
    // One that does not answer is no use in a panic either.
    seen.states[2] = State::Silent;
    let with_silent = counts(&of, By::Random, &seen, &[]);
    assert!(with_silent[2] == 0 && with_silent[0] > 1_500, "{with_silent:?}");
    let nobody = Known { states: vec![State::Silent; 5], costs: vec![1.0; 5] };
    assert!(counts(&of, By::Cost, &nobody, &[]).iter().all(|count| *count > 1_500));
    assert_eq!(of.choose(By::Cost, &nobody, &[0, 1, 2, 3, 4], 50, &mut numbers(1)), None);
    // Without a threshold, one that is well is enough.
    let mut one_well = Known { states: vec![State::Ejected; 5], costs: vec![1.0; 5] };
    one_well.states[4] = State::Well;
    assert_eq!(of.choose(By::Cost, &one_well, &[], 0, &mut numbers(1)), Some(4));
}

/// Another waypoint, or the next version of this one, chooses as this one does.
#[test]
fn what_a_value_chooses_is_the_same_for_ever() {
    let of = equal(5);
    let values = [&b"ann"[..], b"bob", b"cat", b"dan", b"eve", b"fay", b"gus", b"hal"];
    for seen in [Known::well(5), Known { states: vec![State::Silent; 5], costs: vec![1.0; 5] }] {
        let choose = |value| of.choose(By::Hash(of_bytes(value)), &seen, &[], 50, &mut numbers(1));
        assert_eq!(values.map(choose), [4, 4, 2, 1, 4, 0, 4, 0].map(Some));
    }
    assert_eq!([of_bytes(b""), of_bytes(b"ann")], [0xc3817c016ba4ff30, 0xb4090a0ba3f8393c]);
}

#[test]
fn few_values_move_when_an_endpoint_goes() {
    let of = equal(10);
    let choose = |seen: &Known, value| of.choose(By::Hash(mix(value)), seen, &[], 50, &mut numbers(1)).expect("one");
    let before: Vec<_> = (0..1_000).map(|value| choose(&Known::well(10), value)).collect();
    assert_eq!(before, (0..1_000).map(|value| choose(&Known::well(10), value)).collect::<Vec<_>>());
    let without = Known::well(10).but(3, State::Ejected);
    for (value, place) in before.iter().enumerate() {
        let now = choose(&without, value as u64);
        assert!(if *place == 3 { now != 3 } else { now == *place }, "{value}: {place} {now}");
    }
}

#[test]
fn endpoints_are_told_apart_and_counted() {
    let of = equal(3);
    assert_eq!((of.len(), of.is_empty(), equal(0).is_empty()), (3, false, true));
    assert_eq!([of.id(0), of.id(1), of.id(2)], [mix(1), mix(2), mix(3)]);
}
