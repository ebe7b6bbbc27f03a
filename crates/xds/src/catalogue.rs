//! All published resources of one type, in an ordered map whose versions share structure.
//!
//! It is a tree: resources lie on *pages*, ordered by name, and pages lie on *shelves*. A change copies one page and
//! the shelves above it. So comparing a catalogue with a later version skips everything that the two share, and a
//! page's wire format is encoded once, for all proxies that are sent the whole page.
//!
//! A log of changes with generation numbers would serve the same purpose. But a log must be bounded, and then a slow
//! proxy may be behind its end. The difference of two snapshots is always exact.
//!
//! `leno_model::Map` shares structure in the same way, but has no pages that are encoded once and no difference of two
//! versions.

use std::cmp::Ordering;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leno_model::Name;

use crate::encoded::Published;

/// Most resources of a page. In a real mesh, a page has some 30 KiB: two frames.
const PAGE: usize = 128;
/// Most pages, or shelves, of a shelf.
const SHELF: usize = 64;

/// All published resources of one type. Cheap to clone: clones share everything until they change.
#[derive(Debug, Clone)]
pub struct Catalogue {
    root: Node,
    count: usize,
    /// Length of all resources in wire format, bytes.
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Node {
    Page(Arc<Page>),
    Shelf(Arc<Shelf>),
}

/// Resources, ordered by name.
#[derive(Debug, Default)]
pub(crate) struct Page {
    entries: Vec<Arc<Published>>,
    /// All of them in wire format, once that was needed.
    block: OnceLock<Bytes>,
}

#[derive(Debug, Clone)]
struct Shelf {
    /// Each node with its separator: a name that comes after all names of the node before, and not after any of its own.
    places: Vec<(Name, Node)>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self { root: Node::Page(Arc::default()), count: 0, bytes: 0 }
    }
}

impl Catalogue {
    /// The number of resources.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Length of all of them in wire format, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The resource with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Published>> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Page(page) => return page.find(name).ok().map(|at| &page.entries[at]),
                Node::Shelf(shelf) => node = &shelf.places[shelf.place_of(name)].1,
            }
        }
    }

    /// Whether there is a resource with this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All resources, ordered by name.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Published>> {
        self.pages().flat_map(|page| &page.entries)
    }

    /// All names, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Name> {
        self.values().map(|resource| resource.name())
    }

    /// All names and resources, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Arc<Published>)> {
        self.values().map(|resource| (resource.name(), resource))
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = &Arc<Page>> {
        let mut stack = vec![&self.root];
        std::iter::from_fn(move || {
            loop {
                match stack.pop()? {
                    Node::Page(page) => return Some(page),
                    Node::Shelf(shelf) => stack.extend(shelf.places.iter().rev().map(|(_, node)| node)),
                }
            }
        })
    }

    /// Adds a resource, or replaces the one with the same name.
    pub(crate) fn insert(&mut self, new: Arc<Published>) {
        self.bytes += new.field().len();
        let (replaced, split) = self.root.insert(new);
        match replaced {
            Some(old) => self.bytes -= old.field().len(),
            None => self.count += 1,
        }
        if let Some(right) = split {
            let left = std::mem::replace(&mut self.root, Node::Page(Arc::default()));
            let places = [left, right].map(|node| (node.first(), node));
            self.root = Node::Shelf(Arc::new(Shelf { places: places.into() }));
        }
    }

    /// Removes the resource with this name. Returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        if !self.contains_key(name) {
            return false;
        }
        if let Some(old) = self.root.remove(name) {
            self.count -= 1;
            self.bytes -= old.field().len();
        }
        while let Node::Shelf(shelf) = &self.root
            && shelf.places.len() < 2
        {
            self.root = shelf.places.first().map_or_else(|| Node::Page(Arc::default()), |(_, node)| node.clone());
        }
        true
    }

    /// Calls `each` for every difference from `older`, ordered by name. Returns the number of places that were
    /// compared. It depends on the number of changes, not on the number of resources.
    pub(crate) fn changes_since<'a>(&'a self, older: &'a Self, mut each: impl FnMut(Change<'a>)) -> usize {
        let (mut old, mut new) = (Walk::new(&older.root), Walk::new(&self.root));
        let mut looked = 0;
        loop {
            looked += 1;
            match (old.top(), new.top()) {
                (None, None) => return looked,
                (Some(Step::Node(a, _)), Some(Step::Node(b, _))) if a.is(b) => {
                    old.skip();
                    new.skip();
                }
                (Some(Step::Entry(a)), Some(Step::Entry(b))) => {
                    let order = a.name().cmp(b.name());
                    if order.is_le() {
                        old.skip();
                    }
                    if order.is_ge() {
                        new.skip();
                    }
                    match order {
                        Ordering::Less => each(Change::Removed(a)),
                        Ordering::Greater => each(Change::Added(b)),
                        Ordering::Equal if Arc::ptr_eq(a, b) || a == b => {}
                        Ordering::Equal => each(Change::Replaced { old: a, new: b }),
                    }
                }
                // An entry that comes before all of a node can be reported without opening the node.
                (Some(Step::Entry(a)), b) if b.is_none_or(|b| b.is_behind(a)) => {
                    old.skip();
                    each(Change::Removed(a));
                }
                (a, Some(Step::Entry(b))) if a.is_none_or(|a| a.is_behind(b)) => {
                    new.skip();
                    each(Change::Added(b));
                }
                (a, b) if b.is_none_or(|b| a.is_some_and(|a| a.height() >= b.height())) => old.open(),
                _ => new.open(),
            }
        }
    }
}

impl PartialEq for Catalogue {
    fn eq(&self, other: &Self) -> bool {
        let mut same = self.count == other.count && self.bytes == other.bytes;
        if same {
            self.changes_since(other, |_| same = false);
        }
        same
    }
}

impl Eq for Catalogue {}

impl Index<&str> for Catalogue {
    type Output = Published;

    fn index(&self, name: &str) -> &Published {
        match self.get(name) {
            Some(found) => found,
            None => panic!("no resource {name:?}"),
        }
    }
}

/// A difference between two catalogues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Added(&'a Arc<Published>),
    Replaced { old: &'a Arc<Published>, new: &'a Arc<Published> },
    Removed(&'a Arc<Published>),
}

impl Node {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Page(a), Self::Page(b)) => Arc::ptr_eq(a, b),
            (Self::Shelf(a), Self::Shelf(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The number of its entries or children.
    fn len(&self) -> usize {
        match self {
            Self::Page(page) => page.entries.len(),
            Self::Shelf(shelf) => shelf.places.len(),
        }
    }

    fn most(&self) -> usize {
        match self {
            Self::Page(_) => PAGE,
            Self::Shelf(_) => SHELF,
        }
    }

    /// The number of shelf levels above the pages.
    fn height(&self) -> usize {
        match self {
            Self::Page(_) => 0,
            Self::Shelf(shelf) => 1 + shelf.places.first().map_or(0, |(_, node)| node.height()),
        }
    }

    /// Its separator: a name that is not after any of its own.
    fn first(&self) -> Name {
        match self {
            Self::Page(page) => page.entries.first().map_or_else(|| "".into(), |entry| entry.name().clone()),
            Self::Shelf(shelf) => shelf.places.first().map_or_else(|| "".into(), |(first, _)| first.clone()),
        }
    }

    /// Returns the resource that was replaced, and the node that was split off and follows this one.
    fn insert(&mut self, new: Arc<Published>) -> (Option<Arc<Published>>, Option<Self>) {
        let replaced = match self {
            Self::Page(page) => {
                let page = Arc::make_mut(page);
                page.block.take();
                match page.find(new.name()) {
                    Ok(at) => Some(std::mem::replace(&mut page.entries[at], new)),
                    Err(at) => {
                        page.entries.insert(at, new);
                        None
                    }
                }
            }
            Self::Shelf(shelf) => {
                let shelf = Arc::make_mut(shelf);
                let at = shelf.place_of(new.name());
                let (first, node) = &mut shelf.places[at];
                if new.name() < first {
                    *first = new.name().clone();
                }
                let (replaced, split) = node.insert(new);
                if let Some(right) = split {
                    shelf.places.insert(at + 1, (right.first(), right));
                }
                replaced
            }
        };
        let split = (self.len() > self.most()).then(|| self.split());
        (replaced, split)
    }

    fn split(&mut self) -> Self {
        match self {
            Self::Page(page) => {
                let page = Arc::make_mut(page);
                let entries = page.entries.split_off(page.entries.len() / 2);
                Self::Page(Arc::new(Page { entries, block: OnceLock::new() }))
            }
            Self::Shelf(shelf) => {
                let shelf = Arc::make_mut(shelf);
                let places = shelf.places.split_off(shelf.places.len() / 2);
                Self::Shelf(Arc::new(Shelf { places }))
            }
        }
    }

    /// Appends a node that follows this one.
    fn join(&mut self, right: &Self) {
        match (self, right) {
            (Self::Page(left), Self::Page(right)) => {
                let left = Arc::make_mut(left);
                left.block.take();
                left.entries.extend_from_slice(&right.entries);
            }
            (Self::Shelf(left), Self::Shelf(right)) => Arc::make_mut(left).places.extend_from_slice(&right.places),
            // All children of a shelf have the same height.
            _ => debug_assert!(false, "a page beside a shelf"),
        }
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Published>> {
        match self {
            Self::Page(page) => {
                let page = Arc::make_mut(page);
                let at = page.find(name).ok()?;
                page.block.take();
                Some(page.entries.remove(at))
            }
            Self::Shelf(shelf) => {
                let shelf = Arc::make_mut(shelf);
                let at = shelf.place_of(name);
                let removed = shelf.places[at].1.remove(name);
                shelf.tidy(at);
                removed
            }
        }
    }
}

impl Shelf {
    fn place_of(&self, name: &str) -> usize {
        self.places.partition_point(|(first, _)| &**first <= name).saturating_sub(1)
    }

    /// Merges the child at `at` into its neighbour if it has become small, or removes it if it is empty.
    fn tidy(&mut self, at: usize) {
        let node = &self.places[at].1;
        if node.len() == 0 {
            self.places.remove(at);
            return;
        }
        if node.len() >= node.most() / 4 {
            return;
        }
        // With some room left, so that the next addition does not split them again.
        let room = node.most() * 3 / 4;
        let fits =
            |left: usize| self.places.get(left + 1).is_some_and(|b| self.places[left].1.len() + b.1.len() <= room);
        let left = if at > 0 && fits(at - 1) {
            at - 1
        } else if fits(at) {
            at
        } else {
            return;
        };
        let (_, right) = self.places.remove(left + 1);
        self.places[left].1.join(&right);
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        // A clone is made in order to be changed.
        Self { entries: self.entries.clone(), block: OnceLock::new() }
    }
}

impl Page {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (**entry.name()).cmp(name))
    }

    /// All of it in wire format.
    pub(crate) fn block(&self) -> &Bytes {
        self.block.get_or_init(|| {
            let mut block = Vec::with_capacity(self.entries.iter().map(|entry| entry.field().len()).sum());
            for entry in &self.entries {
                block.extend_from_slice(entry.field());
            }
            block.into()
        })
    }
}

/// A walk through a catalogue, from its first name to its last.
struct Walk<'a> {
    /// What is ahead; the next step is on top.
    ahead: Vec<Step<'a>>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Entry(&'a Arc<Published>),
    /// A node with its separator.
    Node(&'a Node, &'a str),
}

impl<'a> Walk<'a> {
    fn new(root: &'a Node) -> Self {
        Self { ahead: vec![Step::Node(root, "")] }
    }

    fn top(&self) -> Option<Step<'a>> {
        self.ahead.last().copied()
    }

    fn skip(&mut self) {
        self.ahead.pop();
    }

    /// Opens the node on top.
    fn open(&mut self) {
        match self.ahead.pop() {
            Some(Step::Node(Node::Page(page), _)) => self.ahead.extend(page.entries.iter().rev().map(Step::Entry)),
            Some(Step::Node(Node::Shelf(shelf), _)) => {
                self.ahead.extend(shelf.places.iter().rev().map(|(first, node)| Step::Node(node, first)));
            }
            Some(entry @ Step::Entry(_)) => self.ahead.push(entry),
            None => {}
        }
    }
}

impl Step<'_> {
    /// Whether it is a node whose names all come after `entry`.
    fn is_behind(&self, entry: &Published) -> bool {
        matches!(self, Self::Node(_, first) if &**entry.name() < *first)
    }

    fn height(&self) -> usize {
        match self {
            Self::Entry(_) => 0,
            Self::Node(node, _) => 1 + node.height(),
        }
    }
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
