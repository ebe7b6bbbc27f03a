//! Endpoints that don't answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use leno_tunnel::timers::timeout;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::failure::Failure;

/// How long an endpoint that did not answer is tried last: the first time, and at most. It doubles each time.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

/// How long a connection waits for an endpoint that did not answer before, if there are other endpoints. One that is
/// back answers in a fraction of that.
const PROBE: Duration = Duration::from_secs(1);

/// After this time without an answer, an endpoint counts as silent, even if the program gave up earlier.
const SILENCE: Duration = Duration::from_secs(1);

/// Most endpoints remembered for a pod. Beyond this, the entry that expires first is dropped.
const REMEMBERED: usize = 256;

/// The endpoints that did not answer a pod. Each would cost every new connection seconds, so they are tried last for a
/// while. Then one connection that chooses such an endpoint finds out whether it is back.
///
/// They are kept for each pod, because a network policy may keep one pod from an endpoint that others reach.
#[derive(Default)]
pub struct Silent {
    known: Mutex<Vec<Endpoint>>,
    /// Whether there are any. Without any, no lock is taken.
    any: AtomicBool,
}

struct Endpoint {
    address: SocketAddr,
    /// It is tried last until this time.
    until: Instant,
    /// How many times in a row it did not answer.
    times: u32,
}

impl Silent {
    /// Whether there are any endpoints that did not answer.
    pub fn is_any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether the endpoint is tried last.
    pub fn is_avoided(&self, address: SocketAddr) -> bool {
        self.any.load(Relaxed) && self.until(address).is_some_and(|until| until > Instant::now())
    }

    fn until(&self, address: SocketAddr) -> Option<Instant> {
        self.known.lock().iter().find(|known| known.address == address).map(|known| known.until)
    }

    /// Connects to an endpoint with `dialling`, and remembers whether it answered. If there are `others`, the wait for
    /// an endpoint that did not answer before is short.
    pub async fn dial<T>(
        &self,
        address: SocketAddr,
        others: bool,
        dialling: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut attempt = self.attempt(address);
        let result = if attempt.known && others {
            timeout(PROBE, dialling).await.unwrap_or(Err(Failure::ConnectTimeout { address, waited: PROBE }))
        } else {
            dialling.await
        };
        attempt.answered = Some(!matches!(&result, Err(failure) if failure.is_silence()));
        result
    }

    fn attempt(&self, address: SocketAddr) -> Attempt<'_> {
        let now = Instant::now();
        let mut attempt = Attempt { silent: self, address, begun: now, known: false, decides: true, answered: None };
        if self.any.load(Relaxed)
            && let Some(known) = self.known.lock().iter_mut().find(|known| known.address == address)
        {
            attempt.known = true;
            // Other connections keep avoiding it until this one has the result.
            attempt.decides = known.until <= now;
            if attempt.decides {
                known.until = now + FIRST;
            }
        }
        attempt
    }

    /// Lets the next connection that chooses the endpoint find out.
    fn allow(&self, address: SocketAddr) {
        if let Some(known) = self.known.lock().iter_mut().find(|known| known.address == address) {
            known.until = Instant::now();
        }
    }

    /// The endpoint has answered.
    pub fn answered(&self, address: SocketAddr) {
        if self.any.load(Relaxed) {
            let mut known = self.known.lock();
            known.retain(|known| known.address != address);
            self.any.store(!known.is_empty(), Relaxed);
        }
    }

    /// A tunnel to the endpoint was dead. Called once for each connection that was requested over it.
    pub fn has_fallen_silent(&self, address: SocketAddr) {
        if !self.is_avoided(address) {
            self.did_not_answer(address);
        }
    }

    /// The endpoint did not answer.
    fn did_not_answer(&self, address: SocketAddr) {
        let mut known = self.known.lock();
        let now = Instant::now();
        let index = known.iter().position(|known| known.address == address);
        let times = index.map_or(0, |index| known.swap_remove(index).times);
        if known.len() == REMEMBERED
            && let Some((first, _)) = known.iter().enumerate().min_by_key(|(_, known)| known.until)
        {
            known.swap_remove(first);
        }
        let until = now + (FIRST * (1 << times.min(8))).min(LONGEST);
        known.push(Endpoint { address, until, times: times + 1 });
        self.any.store(true, Relaxed);
    }
}

/// One connection attempt. Dropped without a result, it counts as given up.
struct Attempt<'a> {
    silent: &'a Silent,
    address: SocketAddr,
    begun: Instant,
    /// Whether the endpoint was known not to answer.
    known: bool,
    /// Whether the result of this attempt counts. If a hundred fail together, that is one failure.
    decides: bool,
    answered: Option<bool>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        match self.answered.or_else(|| (self.begun.elapsed() >= SILENCE).then_some(false)) {
            Some(true) => self.silent.answered(self.address),
            Some(false) if self.known && self.decides => self.silent.did_not_answer(self.address),
            Some(false) if !self.known => self.silent.has_fallen_silent(self.address),
            // Given up before there was a result: the next attempt may find out.
            None if self.known && self.decides => self.silent.allow(self.address),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "silent_tests.rs"]
mod tests;
