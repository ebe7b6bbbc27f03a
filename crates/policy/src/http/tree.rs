//! Values by the prefixes of paths: what a lookup costs depends on the path, not on how many prefixes there are.

use std::collections::HashMap;

use smallvec::SmallVec;

/// Values by prefix. A prefix has no slash at its end; the empty one is that of every path.
#[derive(Debug)]
pub(super) struct Tree<T> {
    root: Node<T>,
}

#[derive(Debug)]
struct Node<T> {
    below: HashMap<Box<str>, Self>,
    here: Option<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { below: HashMap::new(), here: None }
    }
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { root: Node::default() }
    }
}

impl<T> Tree<T> {
    /// The value of this prefix, made if there is none.
    pub(super) fn entry(&mut self, prefix: &str, make: impl FnOnce() -> T) -> &mut T {
        let mut node = &mut self.root;
        for segment in prefix.split('/').skip(1) {
            node = node.below.entry(segment.into()).or_default();
        }
        node.here.get_or_insert_with(make)
    }

    /// The values of the prefixes of `path` except the empty prefix, the longest first, each with its prefix's length.
    pub(super) fn along(&self, path: &str) -> SmallVec<[(usize, &T); 4]> {
        let mut found = SmallVec::new();
        let mut node = &self.root;
        let mut length = 0;
        for segment in path.split('/').skip(1) {
            let Some(next) = node.below.get(segment) else { break };
            node = next;
            length += 1 + segment.len();
            found.extend(node.here.as_ref().map(|value| (length, value)));
        }
        found.reverse();
        found
    }

    /// The value of the empty prefix.
    pub(super) fn of_all(&self) -> Option<&T> {
        self.root.here.as_ref()
    }

    pub(super) fn values_mut(&mut self, each: &mut dyn FnMut(&mut T)) {
        self.root.values_mut(each);
    }
}

impl<T> Node<T> {
    fn values_mut(&mut self, each: &mut dyn FnMut(&mut T)) {
        self.here.iter_mut().for_each(&mut *each);
        self.below.values_mut().for_each(|node| node.values_mut(each));
    }
}
