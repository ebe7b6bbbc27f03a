//! Files and directories that a pod's containers find at paths of their own.

use std::sync::Arc;

use leno_model::Name;

use super::config::NameReference;
use super::decode::object;
use super::validate;

object! {
    /// A directory that a pod's containers can mount. One of its sources is given.
    pub struct Volume {
        /// Name, unique in the pod.
        name: String = "name" (required check validate::label_field),
        /// The entries of a ConfigMap, each a file.
        config_map: Option<ConfigMapVolume> = "configMap",
        /// The entries of a Secret, each a file.
        secret: Option<SecretVolume> = "secret",
        /// An empty directory that goes with the pod.
        empty_dir: Option<EmptyDirVolume> = "emptyDir",
        /// A directory that outlives the pod.
        persistent_volume_claim: Option<ClaimVolume> = "persistentVolumeClaim",
        /// A file or directory of the machine.
        host_path: Option<HostPathVolume> = "hostPath",
        /// ConfigMaps and Secrets in one directory.
        projected: Option<ProjectedVolume> = "projected",
    }
    ignored [
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "downwardAPI", "ephemeral", "fc",
        "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "image", "iscsi", "nfs",
        "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
    ]
}

object! {
    /// A ConfigMap as a directory.
    pub struct ConfigMapVolume {
        /// Its name, in the pod's namespace.
        name: String = "name" (required),
        /// Which entries, under which paths; none means all, under their names.
        items: Vec<KeyToPath> = "items",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
    ignored ["defaultMode"]
}

object! {
    /// A Secret as a directory.
    pub struct SecretVolume {
        /// Its name, in the pod's namespace.
        name: String = "secretName" (required),
        /// Which entries, under which paths; none means all, under their names.
        items: Vec<KeyToPath> = "items",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
    ignored ["defaultMode"]
}

object! {
    /// An entry and the file it becomes.
    pub struct KeyToPath {
        /// Name of the entry.
        key: String = "key" (required),
        /// Path of the file below the volume.
        path: String = "path" (required check validate::inner_path_field),
    }
    ignored ["mode"]
}

object! {
    /// An empty directory.
    pub struct EmptyDirVolume {}
    silent ["medium", "sizeLimit"]
}

object! {
    /// A claim on a directory that outlives the pod.
    pub struct ClaimVolume {
        /// Name of the claim, in the pod's namespace.
        claim_name: Name = "claimName" (required check validate::subdomain_field),
    }
    silent ["readOnly"]
}

object! {
    /// A file or directory of the machine.
    pub struct HostPathVolume {
        /// Its path.
        path: String = "path" (required check validate::absolute_path_field),
    }
    silent ["type"]
}

object! {
    /// Several sources in one directory.
    pub struct ProjectedVolume {
        /// What they are.
        sources: Arc<[ProjectedSource]> = "sources",
    }
    ignored ["defaultMode"]
}

object! {
    /// A source of a projected volume.
    pub struct ProjectedSource {
        /// A ConfigMap.
        config_map: Option<ProjectedReference> = "configMap",
        /// A Secret.
        secret: Option<ProjectedReference> = "secret",
    }
    ignored ["clusterTrustBundle", "downwardAPI", "podCertificate", "serviceAccountToken"]
}

object! {
    /// A ConfigMap or a Secret among the sources of a projected volume.
    pub struct ProjectedReference {
        /// Its name, in the pod's namespace.
        name: String = "name" (required),
        /// Which entries, under which paths; none means all, under their names.
        items: Vec<KeyToPath> = "items",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}

object! {
    /// Where a container finds a volume.
    pub struct VolumeMount {
        /// Name of the volume.
        name: String = "name" (required),
        /// Path in the container.
        mount_path: String = "mountPath" (required check validate::absolute_path_field),
        /// Only this path of the volume; empty for all of it.
        sub_path: String = "subPath" (check validate::inner_path_field),
        /// Whether it can't be written.
        read_only: bool = "readOnly",
    }
    ignored ["subPathExpr"]
    silent ["mountPropagation", "recursiveReadOnly"]
}

impl ProjectedReference {
    /// The reference without what is taken of it.
    pub fn reference(&self) -> NameReference {
        NameReference { name: self.name.clone(), optional: self.optional }
    }
}
