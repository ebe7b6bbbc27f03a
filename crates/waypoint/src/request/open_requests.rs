//! The requests of a connection that are open, for whoever looks at what is open.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::uri::PathAndQuery;
use http::{Method, Version};
use leno_model::Workload;
use parking_lot::Mutex;

/// One open request, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) started: Instant,
    pub(crate) method: Method,
    pub(crate) path: Option<PathAndQuery>,
    pub(crate) version: Version,
    pub(crate) endpoint: (Option<SocketAddr>, Option<Arc<Workload>>),
    pub(crate) trace: Option<u128>,
    pub(crate) span: u64,
}

/// The open requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct AllPending {
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    taken: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// When the last request ended, or the connection began.
    since: Since,
}

#[derive(Debug)]
struct Since(Instant);

impl Default for Since {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl AllPending {
    /// A request has begun. Returns its place.
    pub(crate) fn begin(&self, request: Pending) -> usize {
        let mut places = self.places.lock();
        if let Some(place) = places.free.pop() {
            places.taken[place] = Some(request);
            return place;
        }
        places.taken.push(Some(request));
        places.taken.len() - 1
    }

    /// More is known of the request in `place`.
    pub(crate) fn learn(&self, place: usize, learn: impl FnOnce(&mut Pending)) {
        if let Some(Some(pending)) = self.places.lock().taken.get_mut(place) {
            learn(pending);
        }
    }

    /// The request in `place` has ended.
    pub(crate) fn end(&self, place: usize) {
        let mut places = self.places.lock();
        if let Some(taken) = places.taken.get_mut(place)
            && taken.take().is_some()
        {
            places.free.push(place);
            if places.free.len() == places.taken.len() {
                places.since = Since::default();
            }
        }
    }

    /// For how long there has been none; `None` if there is one.
    pub(crate) fn idle(&self) -> Option<std::time::Duration> {
        let places = self.places.lock();
        (places.free.len() == places.taken.len()).then(|| places.since.0.elapsed())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Pending> {
        self.places.lock().taken.iter().flatten().cloned().collect()
    }
}

/// A version's name in the log.
pub(crate) fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(method: Method) -> Pending {
        Pending {
            started: Instant::now(),
            method,
            path: None,
            version: Version::HTTP_11,
            endpoint: (None, None),
            trace: None,
            span: 1,
        }
    }

    #[test]
    fn places_are_used_again() {
        let all = AllPending::default();
        let first = all.begin(pending(Method::GET));
        let second = all.begin(pending(Method::PUT));
        all.end(first);
        all.end(first);
        assert_eq!(all.begin(pending(Method::POST)), first);
        all.learn(second, |request| request.trace = Some(7));
        let methods: Vec<_> = all.all().into_iter().map(|request| (request.method, request.trace)).collect();
        assert_eq!(methods, [(Method::POST, None), (Method::PUT, Some(7))]);
        all.end(first);
        all.end(second);
        assert!(all.all().is_empty());
    }
}
