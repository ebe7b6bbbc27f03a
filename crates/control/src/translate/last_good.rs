//! What stays in force of a policy whose newest version can't be read: the version before, as long as the new one is for the
//! same. A policy that is new, or for anything else than before, has no such version, and is closed.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_objects::{Kind, Object, ObjectKey, ObjectStore};

use super::Named;
use super::authorization::is_enforced;
use super::policy_refs::Attachable;
use super::request_policy::problem;

/// The good versions of the policies whose newest one can't be read.
#[derive(Debug, Default)]
pub(super) struct LastGood(BTreeMap<ObjectKey, Arc<Object>>);

impl LastGood {
    /// Takes in that a version of an object follows another one.
    pub(super) fn edited(&mut self, key: &ObjectKey, old: Option<&Arc<Object>>, new: Option<&Object>) {
        let before = self.0.remove(key);
        let Some(new) = new.and_then(Attachable::of).filter(|new| problem(*new).is_some()) else { return };
        let is_good = |old: &&Arc<Object>| Attachable::of(old).is_some_and(|it| problem(it).is_none());
        let good = before.or_else(|| old.filter(is_good).cloned());
        if let Some(good) = good.filter(|good| Attachable::of(good).is_some_and(|good| is_for_the_same(good, new))) {
            self.0.insert(key.clone(), good);
        }
    }

    /// The version of a policy that is followed, and why this is not the newest one.
    pub(super) fn in_force<'a>(
        &'a self,
        store: &'a ObjectStore,
        kind: Kind,
        name: &Named,
    ) -> Option<(Attachable<'a>, Option<String>)> {
        let newest = Attachable::get(store, kind, name)?;
        let good = self.0.get(&ObjectKey::new(kind, name.0.clone(), name.1.clone()));
        let Some(good) = good.and_then(|object| Attachable::of(object)) else { return Some((newest, None)) };
        let why = problem(newest).unwrap_or_default();
        Some((
            good,
            Some(format!("not understood by this version of Leno, and the version before stays in force: {why}")),
        ))
    }
}

/// Whether two versions of a policy are for the same traffic. What is for more might open it, because the rules of the version
/// before were not written for that.
fn is_for_the_same(one: Attachable<'_>, other: Attachable<'_>) -> bool {
    let place = |policy| match policy {
        Attachable::Authorization(policy) => (Some(is_enforced(policy)), policy.selected()),
        Attachable::Authentication(_) => (None, None),
    };
    one.references().eq(other.references()) && place(one) == place(other)
}
