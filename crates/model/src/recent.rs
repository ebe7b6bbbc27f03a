//! Things that were seen of late, so that what is equal is kept once.

/// As many things are remembered as there may be Deployments that change at the same time.
const REMEMBERED: usize = 4096;

/// Remembers the last thing of each hash. What is forgotten meanwhile is kept once more, which costs memory and
/// nothing else.
#[derive(Debug)]
pub struct Recent<T>(Vec<Option<T>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + PartialEq> Recent<T> {
    /// Makes `thing` the one that was seen before, if it is equal. Another is remembered from now on, after `settle`
    /// made it fit to be kept for long, which must leave it equal to what it was.
    pub fn share(&mut self, hash: u64, thing: &mut T, settle: impl FnOnce(&mut T)) {
        if self.0.is_empty() {
            self.0.resize(REMEMBERED, None);
        }
        let slot = usize::try_from(hash % REMEMBERED as u64).ok().and_then(|slot| self.0.get_mut(slot));
        match slot {
            Some(Some(seen)) if seen == thing => *thing = seen.clone(),
            Some(slot) => {
                settle(thing);
                *slot = Some(thing.clone());
            }
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "recent_tests.rs"]
mod tests;
