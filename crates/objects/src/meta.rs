//! The parts that every object has: names, labels, owners and selectors.

pub(crate) mod rules;

use std::sync::Arc;

use leno_model::{Map, Name};

use super::decode::{object, word};
use super::scalars::Timestamp;

/// Labels or annotations. Replicas share most of them: a clone only increments a count.
pub type Labels = Map<Name, Name>;

object! {
    /// Metadata of an object.
    pub struct ObjectMeta {
        /// Name; unique per kind and namespace.
        name: Name = "name" (check rules::object_name),
        /// Namespace; empty for kinds that have none.
        namespace: Name = "namespace" (check rules::namespace_name),
        /// Labels, by which selectors find it.
        labels: Labels = "labels" (check rules::labels),
        /// Annotations.
        annotations: Labels = "annotations" (check rules::annotations),
        /// When it was created.
        creation_timestamp: Option<Timestamp> = "creationTimestamp",
        /// When its deletion was requested; `None` if it was not.
        deletion_timestamp: Option<Timestamp> = "deletionTimestamp",
        /// The objects it belongs to.
        owner_references: Arc<[OwnerReference]> = "ownerReferences",
        /// Id that is never reused, unlike the name.
        uid: String = "uid",
    }
    ignored ["generateName"]
    silent ["resourceVersion", "generation", "managedFields", "selfLink", "finalizers", "deletionGracePeriodSeconds"]
}

impl ObjectMeta {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|value| &**value)
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|value| &**value)
    }
}

object! {
    /// An object that another one belongs to.
    pub struct OwnerReference {
        /// API group and version.
        api_version: String = "apiVersion",
        /// Kind.
        kind: String = "kind" (required),
        /// Name, in the same namespace.
        name: String = "name" (required),
        /// Unique id.
        uid: String = "uid",
        /// Whether the owner manages the object.
        controller: bool = "controller",
        /// Whether the owner waits for the object at deletion.
        block_owner_deletion: bool = "blockOwnerDeletion",
    }
}

object! {
    /// A condition on labels. Empty selects everything.
    pub struct LabelSelector {
        /// Labels that must be there with these values.
        match_labels: Labels = "matchLabels" (check rules::labels),
        /// Further conditions; all must hold.
        match_expressions: Vec<LabelExpression> = "matchExpressions" (check rules::label_expressions),
    }
}

object! {
    /// A condition on one label.
    pub struct LabelExpression {
        /// Label.
        key: String = "key" (required),
        /// What must hold.
        operator: LabelOperator = "operator" (required),
        /// Operands of `In` and `NotIn`.
        values: Vec<String> = "values",
    }
}

word! {
    /// The test of a label condition.
    pub enum LabelOperator {
        /// The label's value is in the list.
        #[default]
        In = "In",
        /// The label's value is not in the list, or the label is missing.
        NotIn = "NotIn",
        /// The label is present.
        Exists = "Exists",
        /// The label is missing.
        DoesNotExist = "DoesNotExist",
    }
}

impl LabelSelector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        selects(&self.match_labels, labels)
            && self.match_expressions.iter().all(|expression| {
                let value = labels.get(&*expression.key);
                let listed = value.is_some_and(|value| expression.values.iter().any(|listed| **listed == **value));
                match expression.operator {
                    LabelOperator::In => listed,
                    LabelOperator::NotIn => !listed,
                    LabelOperator::Exists => value.is_some(),
                    LabelOperator::DoesNotExist => value.is_none(),
                }
            })
    }
}

/// Whether `labels` contain all of `wanted`. An empty `wanted` selects everything.
pub fn selects(wanted: &Labels, labels: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

object! {
    /// One condition of an object's status.
    pub struct Condition {
        /// Type, such as `Ready`.
        kind: String = "type" (required),
        /// `True`, `False` or `Unknown`.
        status: String = "status" (required),
        /// Reason, in one word.
        reason: String = "reason",
        /// Reason, in a sentence.
        message: String = "message",
    }
    silent ["lastTransitionTime", "lastProbeTime", "lastHeartbeatTime", "lastUpdateTime", "observedGeneration"]
}
