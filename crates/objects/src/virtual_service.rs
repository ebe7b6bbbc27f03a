//! Istio's VirtualService, as far as it says something about all requests of a service.

use super::decode::object;
use super::meta::ObjectMeta;
use super::networking::{Anything, GoDuration, Percent};
use super::scalars::PortNumber;

object! {
    /// What happens to the requests of services.
    pub struct VirtualService {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What happens.
        spec: VirtualServiceSpec = "spec" (required),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)).
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a VirtualService.
    pub struct VirtualServiceSpec {
        /// The services, as in a DestinationRule.
        hosts: Vec<String> = "hosts",
        /// Where it counts; `mesh` stands for the mesh itself, and is meant if there are none.
        gateways: Vec<String> = "gateways",
        /// What happens to requests.
        http: Vec<VirtualHttpRoute> = "http",
        /// What happens to TLS that passes.
        tls: Vec<Anything> = "tls",
        /// What happens to TCP that passes.
        tcp: Vec<Anything> = "tcp",
        /// Namespaces whose clients see it.
        export_to: Vec<String> = "exportTo",
    }
}

object! {
    /// What happens to some requests.
    pub struct VirtualHttpRoute {
        /// Name.
        name: Option<String> = "name",
        /// Which; all of them if there are none.
        matches: Vec<Anything> = "match",
        /// Where they go.
        route: Vec<VirtualDestinationShare> = "route",
        /// Failures that are made on purpose.
        fault: Option<HttpFaultInjection> = "fault",
        /// How long a request may take.
        timeout: Option<GoDuration> = "timeout",
        /// When it is sent again.
        retries: Option<HttpRetry> = "retries",
        /// What this version does not do.
        redirect: Option<Anything> = "redirect",
        /// The same.
        direct_response: Option<Anything> = "directResponse",
        /// The same.
        delegate: Option<Anything> = "delegate",
        /// The same.
        rewrite: Option<Anything> = "rewrite",
        /// The same.
        mirror: Option<Anything> = "mirror",
        /// The same.
        mirrors: Vec<Anything> = "mirrors",
        /// The same.
        cors_policy: Option<Anything> = "corsPolicy",
        /// The same.
        headers: Option<Anything> = "headers",
    }
    silent ["mirrorPercent", "mirror_percent", "mirrorPercentage"]
}

object! {
    /// A destination and its share.
    pub struct VirtualDestinationShare {
        /// The destination.
        destination: VirtualDestination = "destination" (required),
        /// Its share.
        weight: Option<u32> = "weight",
        /// Changes of headers.
        headers: Option<Anything> = "headers",
    }
}

object! {
    /// A destination.
    pub struct VirtualDestination {
        /// The service.
        host: String = "host" (required),
        /// A part of its endpoints.
        subset: Option<String> = "subset",
        /// Its port.
        port: Option<VirtualPort> = "port",
    }
}

object! {
    /// A port.
    pub struct VirtualPort {
        /// Its number.
        number: PortNumber = "number",
    }
}

object! {
    /// Failures that are made on purpose.
    pub struct HttpFaultInjection {
        /// Requests that wait.
        delay: Option<HttpFaultDelay> = "delay",
        /// Requests that are answered with a failure.
        abort: Option<HttpFaultAbort> = "abort",
    }
}

object! {
    /// Requests that wait.
    pub struct HttpFaultDelay {
        /// How long.
        fixed_delay: Option<GoDuration> = "fixedDelay",
        /// What is not done.
        exponential_delay: Option<Anything> = "exponentialDelay",
        /// Of a hundred.
        percentage: Option<FaultPercent> = "percentage",
        /// The same, older form.
        percent: Option<Percent> = "percent",
    }
}

object! {
    /// Requests that are answered with a failure.
    pub struct HttpFaultAbort {
        /// With this status.
        http_status: Option<u32> = "httpStatus",
        /// With this gRPC status, by name or number.
        grpc_status: Option<String> = "grpcStatus",
        /// What is not done.
        http2_error: Option<Anything> = "http2Error",
        /// Of a hundred.
        percentage: Option<FaultPercent> = "percentage",
    }
}

object! {
    /// A share.
    pub struct FaultPercent {
        /// Of a hundred.
        value: Percent = "value",
    }
}

object! {
    /// When a request is sent again.
    pub struct HttpRetry {
        /// How often; 0 for never.
        attempts: Option<u32> = "attempts",
        /// How long one attempt may take.
        per_try_timeout: Option<GoDuration> = "perTryTimeout",
        /// For which reasons, separated by commas.
        retry_on: Option<String> = "retryOn",
        /// Shortest wait between attempts.
        backoff: Option<GoDuration> = "backoff",
    }
    // Endpoints that were asked are not asked again anyway, while there are others.
    silent ["retryRemoteLocalities", "retryIgnorePreviousHosts"]
}
