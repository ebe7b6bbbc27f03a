//! What a person would believe that a field does, and that nothing does here. Said in so many words, with the field's name:
//! a manifest that is accepted sounds like one that is in force.

/// What does not happen although a field is there; `None` for fields nobody would miss.
pub(crate) fn of_field(field: &str) -> Option<&'static str> {
    Some(match field {
        "livenessProbe" => "a container that hangs is NOT started again",
        "startupProbe" => "no other probe waits for it",
        "grpc" => "it is NOT asked; write tcpSocket or exec",
        "lifecycle" => "its hooks are NOT run",
        "securityContext" => "processes run with the user and the rights that all pods have here",
        "resources" => "processor time and memory are NOT limited",
        "hostPort" => "the machine's port does NOT lead to the pod",
        "nodeSelector" | "affinity" | "tolerations" | "topologySpreadConstraints" => {
            "it does NOT choose the node; write nodeName"
        }
        "hostAliases" => "/etc/hosts does NOT have these names",
        "dnsConfig" | "dnsPolicy" => "names are looked up as by every pod",
        "activeDeadlineSeconds" => "nothing is ended after that time",
        "suspend" => "it runs all the same",
        "strategy" | "updateStrategy" => "an update is a rolling one, whatever it says",
        "paused" => "an update takes effect at once",
        "readinessGates" => "a pod is ready without them",
        "podFailurePolicy" | "successPolicy" | "backoffLimitPerIndex" | "completionMode" => {
            "a Job counts only how many pods ended well and how many failed"
        }
        "externalIPs" | "loadBalancerIP" => "nothing leads from there to the Service",
        "loadBalancerSourceRanges" => "traffic is NOT restricted by it; write an AuthorizationPolicy for that",
        "nodePort" => "the machine's port does NOT lead to the Service",
        "subPathExpr" => "the whole volume is mounted",
        "serviceAccountToken" => "the token's file is NOT there",
        "downwardAPI" => "its files are NOT there",
        "csi"
        | "ephemeral"
        | "nfs"
        | "iscsi"
        | "cephfs"
        | "fc"
        | "rbd"
        | "glusterfs"
        | "awsElasticBlockStore"
        | "azureDisk"
        | "azureFile"
        | "gcePersistentDisk"
        | "gitRepo"
        | "image" => "the pod finds an empty directory there",
        "allowedListeners" => "no ListenerSet is attached",
        "defaultScope" => "routes without a parent do NOT use it",
        "tls" => "the mesh's own certificates are used, and no other TLS is spoken there",
        "volumeDevices" => "the container does NOT have the device",
        _ => return None,
    })
}
