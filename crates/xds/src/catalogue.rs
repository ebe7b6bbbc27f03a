//! All published resources of one type, in an ordered map whose versions share what they have in common.
//!
//! A tree: resources lie in *pages*, ordered by name, and pages on *shelves*. A change copies one page and
//! the shelves above it. So two catalogues of which one became the other are compared without a look at what both
//! share, however large it is; and what a page's resources are on the wire is written once, for whoever is
//! sent all of them.

use std::cmp::Ordering;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leno_model::Name;

use crate::published::Published;

/// Resources on a page, at most. Of a real mesh, a page has some 30 KiB: two frames.
const PAGE: usize = 128;
/// Pages, or shelves, on a shelf, at most.
const SHELF: usize = 64;

/// All published resources of one type. Cheap to clone; clones share everything until they change.
#[derive(Debug, Clone)]
pub struct Catalogue {
    root: Node,
    count: usize,
    /// Length of all resources on the wire.
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
    /// All of them on the wire, once somebody needed that.
    block: OnceLock<Bytes>,
}

#[derive(Debug, Clone)]
struct Shelf {
    /// Each with a name that none on it comes before, and that all on the one before it come before.
    places: Vec<(Name, Node)>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self { root: Node::Page(Arc::default()), count: 0, bytes: 0 }
    }
}

impl Catalogue {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Length of all of them on the wire.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The resource of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Published>> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Page(page) => return page.find(name).ok().map(|at| &page.entries[at]),
                Node::Shelf(shelf) => node = &shelf.places[shelf.place_of(name)].1,
            }
        }
    }

    /// Whether there is one of that name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All of them, by name.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Published>> {
        self.pages().flat_map(|page| &page.entries)
    }

    /// All names, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &Name> {
        self.values().map(|resource| resource.name())
    }

    /// All of them with their names, in the order of these.
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

    /// Adds it, in place of another of its name.
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

    /// Removes the one of that name; whether there was one.
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

    /// Tells `each` in what this differs from `older`, by name. Says how many places were looked at: it
    /// follows what changed, not what there is.
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
                // What comes before all of a node need not wait for what is in it.
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

    /// Things directly on it.
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

    /// Shelves down to its pages.
    fn height(&self) -> usize {
        match self {
            Self::Page(_) => 0,
            Self::Shelf(shelf) => 1 + shelf.places.first().map_or(0, |(_, node)| node.height()),
        }
    }

    /// A name that none on it comes before.
    fn first(&self) -> Name {
        match self {
            Self::Page(page) => page.entries.first().map_or_else(|| "".into(), |entry| entry.name().clone()),
            Self::Shelf(shelf) => shelf.places.first().map_or_else(|| "".into(), |(first, _)| first.clone()),
        }
    }

    /// What it replaced, and what had no room any more and comes behind this.
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

    /// Appends what comes behind this.
    fn join(&mut self, right: &Self) {
        match (self, right) {
            (Self::Page(left), Self::Page(right)) => {
                let left = Arc::make_mut(left);
                left.block.take();
                left.entries.extend_from_slice(&right.entries);
            }
            (Self::Shelf(left), Self::Shelf(right)) => Arc::make_mut(left).places.extend_from_slice(&right.places),
            // All on a shelf are of one height.
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

    /// Puts what is left at `at` to its neighbour if it is little, or away if it is nothing.
    fn tidy(&mut self, at: usize) {
        let node = &self.places[at].1;
        if node.len() == 0 {
            self.places.remove(at);
            return;
        }
        if node.len() >= node.most() / 4 {
            return;
        }
        // Not so much that the next addition would part them again.
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
        // A copy is made to be changed.
        Self { entries: self.entries.clone(), block: OnceLock::new() }
    }
}

impl Page {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (**entry.name()).cmp(name))
    }

    /// All of it on the wire.
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

/// A way through a catalogue from its first name to its last.
struct Walk<'a> {
    /// What is ahead, the next on top.
    ahead: Vec<Step<'a>>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Entry(&'a Arc<Published>),
    /// With a name that none on it comes before.
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

    /// Goes into the node on top.
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
    /// Whether it is a node, and all on it come behind `entry`.
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
