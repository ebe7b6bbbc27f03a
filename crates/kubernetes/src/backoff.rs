//! How long to wait after a failure.

use std::time::Duration;

/// Waits that grow with each failure in a row.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(200);
    /// An API server that is back is found again within this time.
    const LONGEST: Duration = Duration::from_secs(10);
    /// The longest wait that an API server can ask for.
    const LONGEST_ASKED: Duration = Duration::from_secs(60);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST, failures: 0 }
    }

    /// The wait after another failure. `asked` is how long the API server wants to be left alone. Up to half is added at
    /// random, so that those who were refused together don't come back together.
    pub(crate) fn wait(&mut self, asked: Option<Duration>) -> Duration {
        let own = self.next;
        self.failures += 1;
        self.next = (own * 2).min(Self::LONGEST);
        let wait = asked.unwrap_or_default().min(Self::LONGEST_ASKED).max(own);
        wait.mul_f64(rand::random_range(1.0..1.5))
    }

    /// It works again. Returns how often it failed in a row.
    pub(crate) fn reset(&mut self) -> u32 {
        self.next = Self::FIRST;
        std::mem::take(&mut self.failures)
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_respect_what_the_server_asks_for() {
        let mut backoff = Backoff::new();
        let first = backoff.wait(None);
        assert!(first >= Backoff::FIRST && first < Backoff::FIRST * 2, "{first:?}");
        for _ in 0..20 {
            assert!(backoff.wait(None) < Backoff::LONGEST * 2);
        }
        assert!(backoff.wait(None) >= Backoff::LONGEST);
        assert!(backoff.wait(Some(Duration::from_secs(30))) >= Duration::from_secs(30));
        assert!(backoff.wait(Some(Duration::from_secs(9999))) <= Backoff::LONGEST_ASKED * 2, "nobody asks for hours");
        assert_eq!(backoff.reset(), 24);
        assert!(backoff.wait(None) < Backoff::FIRST * 2);
    }
}
