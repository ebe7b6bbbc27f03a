//! What makes pods besides Deployments: StatefulSet and Job.

pub(crate) mod rules;

use std::sync::Arc;

use super::decode::{object, word};
use super::meta::{LabelSelector, ObjectMeta};
use super::workload::PodTemplateSpec;

object! {
    /// A number of pods that keep their names and their data.
    pub struct StatefulSet {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What should be.
        spec: StatefulSetSpec = "spec" (required check rules::stateful_set_spec),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a StatefulSet should be.
    pub struct StatefulSetSpec {
        /// Number of pods.
        replicas: u32 = "replicas" (default 1),
        /// Which pods are its own.
        selector: LabelSelector = "selector" (required),
        /// What each pod should be.
        template: PodTemplateSpec = "template" (required),
        /// Headless Service below which each pod has a name.
        service_name: String = "serviceName",
        /// Whether a pod waits for the one before it.
        pod_management_policy: PodManagementPolicy = "podManagementPolicy",
        /// The number of the first pod.
        ordinals: Ordinals = "ordinals",
        /// Directories of each pod's own that outlive it.
        volume_claim_templates: Arc<[ClaimTemplate]> = "volumeClaimTemplates",
    }
    ignored ["updateStrategy"]
    silent ["minReadySeconds", "persistentVolumeClaimRetentionPolicy", "revisionHistoryLimit"]
}

word! {
    /// Whether a pod of a StatefulSet waits for the one before it.
    pub enum PodManagementPolicy {
        /// It does.
        #[default]
        OrderedReady = "OrderedReady",
        /// It does not.
        Parallel = "Parallel",
    }
}

object! {
    /// How the pods of a StatefulSet are numbered.
    pub struct Ordinals {
        /// The first number.
        start: u32 = "start",
    }
}

object! {
    /// A directory of each pod's own that outlives it.
    pub struct ClaimTemplate {
        /// Its name is that of the volume.
        metadata: ObjectMeta = "metadata" (required),
    }
    silent ["apiVersion", "kind", "spec", "status"]
}

object! {
    /// Pods that are to end well a number of times.
    pub struct Job {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What should be.
        spec: JobSpec = "spec" (required check rules::job_spec),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a Job should be.
    pub struct JobSpec {
        /// How many pods have to end well.
        completions: u32 = "completions" (default 1),
        /// How many run at a time.
        parallelism: u32 = "parallelism" (default 1),
        /// How many failures are tried again.
        backoff_limit: u32 = "backoffLimit" (default 6),
        /// What each pod should be.
        template: PodTemplateSpec = "template" (required),
    }
    ignored [
        "activeDeadlineSeconds", "backoffLimitPerIndex", "completionMode", "manualSelector", "maxFailedIndexes",
        "podFailurePolicy", "podReplacementPolicy", "selector", "successPolicy", "suspend",
    ]
    silent ["managedBy", "ttlSecondsAfterFinished"]
}
