//! What runs: Namespace, ServiceAccount, Node, Pod and Deployment.

pub(crate) mod rules;

use std::net::IpAddr;
use std::sync::Arc;

use leno_model::Name;

use super::config::{EnvFromSource, KeySelector};
use super::decode::{object, word};
use super::meta::{Condition, LabelSelector, ObjectMeta};
use super::scalars::{IntOrString, PortNumber};
use super::validate;
use super::volumes::{Volume, VolumeMount};

object! {
    /// A namespace.
    pub struct Namespace {
        /// Name, labels (`istio.io/dataplane-mode`), annotations.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
    }
    silent ["apiVersion", "kind", "spec", "status"]
}

object! {
    /// A service account: with its namespace, the identity of the pods that run as it.
    pub struct ServiceAccount {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
    }
    silent ["apiVersion", "kind", "secrets", "imagePullSecrets", "automountServiceAccountToken"]
}

object! {
    /// A node.
    pub struct Node {
        /// Name and topology labels.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// State.
        status: NodeStatus = "status",
    }
    silent ["apiVersion", "kind", "spec"]
}

object! {
    /// State of a node.
    pub struct NodeStatus {
        /// Its addresses.
        addresses: Vec<NodeAddress> = "addresses",
        /// Conditions, of which `Ready` matters.
        conditions: Vec<Condition> = "conditions",
    }
    silent [
        "capacity", "allocatable", "phase", "daemonEndpoints", "nodeInfo", "images", "volumesInUse", "volumesAttached",
        "config", "runtimeHandlers", "features", "declaredFeatures",
    ]
}

object! {
    /// An address of a node.
    pub struct NodeAddress {
        /// `InternalIP`, `Hostname`, ...
        kind: String = "type" (required),
        /// The address or name.
        address: String = "address" (required),
    }
}

object! {
    /// A pod.
    pub struct Pod {
        /// Name, namespace, labels, annotations.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What it should be.
        spec: PodSpec = "spec" (required),
        /// What it is.
        status: PodStatus = "status",
    }
    silent ["apiVersion", "kind"]
}

object! {
    /// The pods a Deployment makes.
    pub struct PodTemplateSpec {
        /// Labels and annotations of each pod.
        metadata: ObjectMeta = "metadata",
        /// What each pod should be.
        spec: PodSpec = "spec" (required),
    }
}

object! {
    /// What a pod should be.
    pub struct PodSpec {
        /// What has to run, one after the other, before its processes; and what runs beside them from before they do.
        init_containers: Arc<[Container]> = "initContainers" (check rules::init_containers),
        /// Its processes.
        containers: Arc<[Container]> = "containers" (required check rules::containers),
        /// Directories that containers can mount.
        volumes: Arc<[Volume]> = "volumes" (check rules::volumes),
        /// Node it is bound to; empty until somebody binds it.
        node_name: Name = "nodeName",
        /// Account it runs as; empty means `default`.
        service_account_name: Name = "serviceAccountName" (check validate::subdomain_field),
        /// Old name of `serviceAccountName`.
        service_account: Name = "serviceAccount" (check validate::subdomain_field),
        /// Whether it shares the node's network.
        host_network: bool = "hostNetwork",
        /// Whether a container that ends is started again.
        restart_policy: RestartPolicy = "restartPolicy",
        /// Seconds between SIGTERM and SIGKILL.
        termination_grace_period_seconds: u32 = "terminationGracePeriodSeconds" (default 30),
    }
    ignored [
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks",
        "ephemeralContainers", "hostAliases", "hostIPC", "hostPID", "hostUsers", "hostname", "hostnameOverride",
        "imagePullSecrets", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority",
        "priorityClassName", "readinessGates", "resourceClaims", "resources", "runtimeClassName", "schedulerName",
        "schedulingGates", "securityContext", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "tolerations",
        "topologySpreadConstraints", "workloadRef",
    ]
}

impl Container {
    /// Whether it is an init container that runs beside the others for as long as the pod does.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

impl PodSpec {
    /// Leaves out what only who starts the pod needs. An API server names one volume differently in each pod, so that
    /// thousands of equal pods would have nothing in common any more.
    pub(crate) fn forget_files(&mut self) {
        self.volumes = Arc::default();
        for containers in [&mut self.containers, &mut self.init_containers] {
            for container in Arc::get_mut(containers).into_iter().flatten() {
                container.volume_mounts = Vec::new();
                container.env_from = Vec::new();
            }
        }
    }

    /// Its processes and what runs before and beside them.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(self.containers.iter())
    }

    /// What serves while the pod runs: its processes, and those that run beside them.
    pub fn serving_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(self.init_containers.iter().filter(|container| container.is_sidecar()))
    }

    /// The service account, never empty.
    pub fn account(&self) -> &str {
        [&*self.service_account_name, &*self.service_account]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("default")
    }
}

word! {
    /// When a container that ended is started again.
    pub enum RestartPolicy {
        /// The container is started again however it ended.
        #[default]
        Always = "Always",
        /// The container is started again if it failed.
        OnFailure = "OnFailure",
        /// The container is not started again.
        Never = "Never",
    }
}

object! {
    /// A process of a pod.
    pub struct Container {
        /// Name, unique in the pod.
        name: String = "name" (required check validate::label_field),
        /// Image.
        image: String = "image",
        /// Program and its first arguments.
        command: Vec<String> = "command",
        /// Further arguments.
        args: Vec<String> = "args",
        /// Environment.
        env: Vec<EnvVar> = "env" (check rules::env),
        /// Directory it starts in; empty for the default.
        working_dir: String = "workingDir",
        /// Ports it listens on; a Service's `targetPort` may name one.
        ports: Vec<ContainerPort> = "ports" (check rules::container_ports),
        /// How to tell that it can serve.
        readiness_probe: Option<Probe> = "readinessProbe",
        /// All entries of ConfigMaps and Secrets as variables; `env` counts before them.
        env_from: Vec<EnvFromSource> = "envFrom",
        /// Where it finds the pod's volumes.
        volume_mounts: Vec<VolumeMount> = "volumeMounts",
        /// Of an init container: `Always` makes it one that runs beside the others for as long as the pod does.
        restart_policy: Option<RestartPolicy> = "restartPolicy",
    }
    ignored [
        "imagePullPolicy", "lifecycle", "livenessProbe", "resizePolicy", "resources", "restartPolicyRules",
        "securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy",
        "tty", "volumeDevices",
    ]
}

object! {
    /// A variable of the environment.
    pub struct EnvVar {
        /// Name.
        name: String = "name" (required check rules::env_name),
        /// Value.
        value: Option<String> = "value",
        /// Where the value comes from instead.
        value_from: Option<EnvVarSource> = "valueFrom",
    }
}

object! {
    /// Where a variable's value comes from.
    pub struct EnvVarSource {
        /// A field of the pod.
        field_ref: Option<ObjectFieldSelector> = "fieldRef",
        /// An entry of a ConfigMap.
        config_map_key_ref: Option<KeySelector> = "configMapKeyRef",
        /// An entry of a Secret.
        secret_key_ref: Option<KeySelector> = "secretKeyRef",
    }
    ignored ["resourceFieldRef", "fileKeyRef"]
}

object! {
    /// A field of the pod itself.
    pub struct ObjectFieldSelector {
        /// Version the path is written for.
        api_version: String = "apiVersion",
        /// Path, such as `status.podIP`.
        field_path: String = "fieldPath" (required),
    }
}

word! {
    /// Transport protocol of a port. The mesh carries TCP.
    pub enum Protocol {
        /// TCP.
        #[default]
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// SCTP.
        Sctp = "SCTP",
    }
}

object! {
    /// A port a container listens on.
    pub struct ContainerPort {
        /// Name, unique in the pod; empty for none.
        name: String = "name" (check validate::port_name_field),
        /// Number.
        container_port: PortNumber = "containerPort" (required),
        /// Transport.
        protocol: Protocol = "protocol",
    }
    ignored ["hostPort", "hostIP"]
}

object! {
    /// A question asked of a container again and again.
    pub struct Probe {
        /// A GET that must answer 200 to 399.
        http_get: Option<HttpGetAction> = "httpGet",
        /// A connection that must succeed.
        tcp_socket: Option<TcpSocketAction> = "tcpSocket",
        /// A command that must end with 0.
        exec: Option<ExecAction> = "exec",
        /// Seconds before the first try.
        initial_delay_seconds: u32 = "initialDelaySeconds",
        /// Seconds between tries.
        period_seconds: u32 = "periodSeconds" (default 10),
        /// Seconds a try may take.
        timeout_seconds: u32 = "timeoutSeconds" (default 1),
        /// Successes in a row that make it ready.
        success_threshold: u32 = "successThreshold" (default 1),
        /// Failures in a row that make it unready.
        failure_threshold: u32 = "failureThreshold" (default 3),
    }
    ignored ["grpc", "terminationGracePeriodSeconds"]
}

object! {
    /// An HTTP probe.
    pub struct HttpGetAction {
        /// Path; empty means `/`.
        path: String = "path",
        /// Port, by number or by the container's name for it.
        port: IntOrString = "port" (required),
        /// Address to ask instead of the pod's.
        host: String = "host",
        /// `HTTP` or `HTTPS`.
        scheme: HttpScheme = "scheme",
        /// Headers to send.
        http_headers: Vec<HttpHeader> = "httpHeaders",
    }
}

word! {
    /// Scheme of an HTTP probe.
    pub enum HttpScheme {
        /// Plain.
        #[default]
        Http = "HTTP",
        /// TLS, certificate not checked.
        Https = "HTTPS",
    }
}

object! {
    /// A header of an HTTP probe.
    pub struct HttpHeader {
        /// Name.
        name: String = "name" (required),
        /// Value.
        value: String = "value" (required),
    }
}

object! {
    /// A TCP probe.
    pub struct TcpSocketAction {
        /// Port, by number or by the container's name for it.
        port: IntOrString = "port" (required),
        /// Address to connect to instead of the pod's.
        host: String = "host",
    }
}

object! {
    /// A command as probe.
    pub struct ExecAction {
        /// Program and arguments; run without a shell.
        command: Vec<String> = "command" (required),
    }
}

object! {
    /// What a pod is.
    pub struct PodStatus {
        /// How far it came.
        phase: PodPhase = "phase",
        /// First address.
        pod_ip: Option<IpAddr> = "podIP",
        /// All addresses.
        pod_ips: Box<[PodIp]> = "podIPs",
        /// Conditions, of which `Ready` matters.
        conditions: Arc<[Condition]> = "conditions",
    }
    silent [
        "hostIP", "hostIPs", "startTime", "containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses",
        "qosClass", "message", "reason", "nominatedNodeName", "observedGeneration", "resize", "resourceClaimStatuses",
        "extendedResourceClaimStatus", "allocatedResources", "resources",
    ]
}

impl PodStatus {
    /// Whether the `Ready` condition holds.
    pub fn is_ready(&self) -> bool {
        self.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// All addresses, the first one first, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut out: Vec<IpAddr> = Vec::new();
        for ip in self.pod_ip.into_iter().chain(self.pod_ips.iter().filter_map(|ip| ip.ip)) {
            let ip = ip.to_canonical();
            if !out.contains(&ip) {
                out.push(ip);
            }
        }
        out
    }
}

word! {
    /// How far a pod came.
    pub enum PodPhase {
        /// Not all containers run yet.
        #[default]
        Pending = "Pending",
        /// At least one container runs.
        Running = "Running",
        /// All ended well and none will start again.
        Succeeded = "Succeeded",
        /// All ended, one badly, and none will start again.
        Failed = "Failed",
        /// The node does not say.
        Unknown = "Unknown",
    }
}

object! {
    /// An address of a pod.
    pub struct PodIp {
        /// The address.
        ip: Option<IpAddr> = "ip",
    }
}

object! {
    /// A number of equal pods.
    pub struct Deployment {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What should be.
        spec: DeploymentSpec = "spec" (required check rules::deployment_spec),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a Deployment should be.
    pub struct DeploymentSpec {
        /// Number of pods.
        replicas: u32 = "replicas" (default 1),
        /// Which pods are its own.
        selector: LabelSelector = "selector" (required),
        /// What each pod should be.
        template: Box<PodTemplateSpec> = "template" (required),
    }
    ignored ["strategy", "minReadySeconds", "revisionHistoryLimit", "paused", "progressDeadlineSeconds"]
}
