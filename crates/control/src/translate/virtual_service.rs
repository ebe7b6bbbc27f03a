//! Translates VirtualServices, as far as they say something about all requests of a Service: a time limit, retries, and failures
//! made on purpose. Whatever else one says refuses it as a whole: half of a routing rule would send requests elsewhere.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use leno_model::http::{Abort, Fault, RequestDefaults, Retry};
use leno_model::{Mesh, PolicyName, ServiceName};
use leno_objects::{
    FaultPercent, GoDuration, HttpFaultInjection, HttpRetry, Percent, VirtualHttpRoute, VirtualService,
};

use super::Options;
use super::index::Known;
use super::route::instead;
use super::virtual_host::{hosts, whole};

/// What becomes of an object.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// `None` if it counts for no service.
    pub(super) defaults: Option<RequestDefaults>,
    /// Whether the last good version stays in force, because this one can't be followed.
    pub(super) keep_last: bool,
    pub(super) warnings: Vec<String>,
}

/// Whether it is for requests in the mesh, and not only for those that come by some gateway.
fn is_of_mesh(object: &VirtualService) -> bool {
    object.spec.gateways.is_empty() || object.spec.gateways.iter().any(|gateway| gateway == "mesh")
}

/// Which object counts for a host: the oldest.
fn oldest<'a>(known: Known<'a>, namespace: &str, host: &str) -> Option<&'a VirtualService> {
    let named = known.index.virtuals_for(namespace, host);
    let objects = named.filter_map(|(namespace, name)| VirtualService::get(known.store, namespace, name));
    // The index finds others, too, now and then.
    let of_host = |object: &&VirtualService| {
        *object.metadata.namespace == *namespace
            && is_of_mesh(object)
            && hosts(known.options, object).any(|other| other == host)
    };
    objects.filter(of_host).min_by_key(|object| {
        let created = object.metadata.creation_timestamp.map_or(SystemTime::UNIX_EPOCH, |at| at.0);
        (created, &object.metadata.name)
    })
}

/// The services of its own namespace that an object names.
pub(super) fn services<'a>(
    options: &'a Options,
    mesh: &'a Mesh,
    object: &'a VirtualService,
) -> impl Iterator<Item = ServiceName> + 'a {
    let namespace = &object.metadata.namespace;
    let found = hosts(options, object).filter_map(move |host| mesh.service_by_hostname(&host, namespace));
    found.filter(move |service| service.id.namespace == *namespace).map(|service| service.id.clone())
}

/// What stays in force of the last good version of an object: what it says of services for which no other one counts by now.
pub(super) fn kept(
    known: Known<'_>,
    mesh: &Mesh,
    object: &VirtualService,
    held: &RequestDefaults,
) -> Option<RequestDefaults> {
    let is_free = |id: &&ServiceName| {
        let service = mesh.service(id);
        let counts = service.and_then(|it| oldest(known, &it.id.namespace, &it.id.hostname));
        counts.is_none_or(|other| std::ptr::eq(other, object))
    };
    let services: Vec<ServiceName> = held.services.iter().filter(is_free).cloned().collect();
    (!services.is_empty()).then(|| RequestDefaults { services, ..held.clone() })
}

/// Translates one.
pub(super) fn virtual_service(known: Known<'_>, mesh: &Mesh, object: &VirtualService) -> Translated {
    let (options, namespace) = (known.options, &object.metadata.namespace);
    let mut out = Translated::default();
    if !is_of_mesh(object) {
        return out;
    }
    let rules = match rules(options, object, &mut out.warnings) {
        Ok(rules) => rules,
        Err(why) => {
            out.keep_last = true;
            let id = PolicyName { namespace: namespace.clone(), name: object.metadata.name.clone() };
            let then = instead(mesh.request_defaults(&id).is_some());
            out.warnings = vec![format!("{why}; it is not followed, not even in part, and {then}")];
            return out;
        }
    };
    let mut services = BTreeSet::new();
    for host in hosts(options, object) {
        let found = mesh.service_by_hostname(&host, namespace);
        let Some(service) = found.filter(|service| service.id.namespace == *namespace) else {
            out.warnings.push(format!(
                "spec.hosts: {host} is no Service of namespace {namespace}, so nothing happens to its requests here"
            ));
            continue;
        };
        match oldest(known, namespace, &host) {
            Some(other) if other.metadata.name != object.metadata.name => {
                out.warnings.push(format!(
                    "VirtualService {namespace}/{} is older and counts for {host}; this one does NOT",
                    other.metadata.name
                ));
                continue;
            }
            _ => {}
        }
        if mesh.routes_of(&service.id).is_some() {
            out.warnings
                .push(format!("an HTTPRoute or GRPCRoute belongs to {host}, and on its ports only that counts"));
        }
        if service.waypoint.is_none() {
            out.warnings.push(format!(
                "no waypoint stands before {host}, so it has no effect until the Service or its Namespace has the label \
                 istio.io/use-waypoint"
            ));
        }
        services.insert(service.id.clone());
    }
    if object.spec.export_to.iter().any(|namespace| namespace != "*") {
        out.warnings.push("spec.exportTo is ignored: it counts for all clients".to_owned());
    }
    let services: Vec<ServiceName> = services.into_iter().collect();
    if !services.is_empty() {
        let id = PolicyName { namespace: namespace.clone(), name: object.metadata.name.clone() };
        out.defaults = Some(RequestDefaults { id, services, ..rules });
    }
    out
}

/// What it says, if it says nothing else.
fn rules(options: &Options, object: &VirtualService, warnings: &mut Vec<String>) -> Result<RequestDefaults, String> {
    if !object.not_understood.is_empty() {
        return Err(format!("not understood by this version of Leno: {}", object.not_understood.join("; ")));
    }
    if object.spec.hosts.is_empty() {
        return Err("spec.hosts has to name a Service".to_owned());
    }
    if !object.spec.tls.is_empty() || !object.spec.tcp.is_empty() {
        return Err("spec.tls and spec.tcp are not done by Leno".to_owned());
    }
    let [http] = &object.spec.http[..] else {
        return Err(
            "spec.http has to have one entry, for all requests; write an HTTPRoute to tell requests apart".to_owned()
        );
    };
    let unknown = [
        ("match", !http.matches.is_empty()),
        ("redirect", http.redirect.is_some()),
        ("directResponse", http.direct_response.is_some()),
        ("delegate", http.delegate.is_some()),
        ("rewrite", http.rewrite.is_some()),
        ("mirror", http.mirror.is_some() || !http.mirrors.is_empty()),
        ("corsPolicy", http.cors_policy.is_some()),
        ("headers", http.headers.is_some()),
    ];
    if let Some((field, _)) = unknown.iter().find(|(_, is_there)| *is_there) {
        return Err(format!("spec.http[0].{field} is not done by Leno; write an HTTPRoute"));
    }
    stays(options, object, http)?;
    let (retry, attempt_timeout) = match &http.retries {
        Some(it) => retries(it, warnings)?,
        None => (None, None),
    };
    Ok(RequestDefaults {
        id: PolicyName { namespace: "".into(), name: "".into() },
        services: Vec::new(),
        timeout: limit("timeout", http.timeout)?,
        attempt_timeout,
        retry,
        fault: http.fault.as_ref().map(|it| fault(it, warnings)).transpose()?,
    })
}

/// A limit of time, of which 0 is none. A waypoint is told milliseconds.
fn limit(field: &str, limit: Option<GoDuration>) -> Result<Option<Duration>, String> {
    match limit.map(|it| it.0).filter(|it| !it.is_zero()) {
        Some(it) if it < Duration::from_millis(1) => {
            Err(format!("spec.http[0].{field} is {it:?}, and has to be at least 1ms, or 0s for no limit"))
        }
        limit => Ok(limit),
    }
}

/// Whether requests go where they would go anyway.
fn stays(options: &Options, object: &VirtualService, http: &VirtualHttpRoute) -> Result<(), String> {
    let elsewhere =
        || Err("spec.http[0].route leads to another Service, port or subset; write an HTTPRoute".to_owned());
    match &http.route[..] {
        [] => Ok(()),
        [one] => {
            let to = whole(options, object, &one.destination.host);
            // A host of several would send the requests of the others there.
            let same = hosts(options, object).all(|host| host == to);
            if !same || one.destination.subset.is_some() || one.destination.port.is_some() || one.headers.is_some() {
                return elsewhere();
            }
            Ok(())
        }
        _ => elsewhere(),
    }
}

/// Most attempts after the first.
const ATTEMPTS: u32 = 100;

fn retries(it: &HttpRetry, warnings: &mut Vec<String>) -> Result<(Option<Retry>, Option<Duration>), String> {
    let attempts = it.attempts.unwrap_or_default();
    let says_more = it.retry_on.is_some() || it.per_try_timeout.is_some() || it.backoff.is_some();
    if attempts > ATTEMPTS || (attempts == 0 && says_more) {
        return Err(format!(
            "spec.http[0].retries.attempts has to be a number up to {ATTEMPTS}; without it, or with 0, nothing is sent \
             again, and the rest of retries has to go"
        ));
    }
    let mut codes = BTreeSet::new();
    // Where no reason is written, as in Istio: only a connection that could not be had.
    for reason in it.retry_on.as_deref().unwrap_or_default().split(',').map(str::trim).filter(|it| !it.is_empty()) {
        match reason {
            "5xx" => codes.extend(500..=599),
            "gateway-error" => codes.extend([502, 503, 504]),
            "retriable-4xx" => codes.extend([409]),
            // The first is done anyway, and the second says that status codes are named, too.
            "connect-failure" | "retriable-status-codes" => {}
            "refused-stream" | "unavailable" | "cancelled" | "reset-before-request" => warnings
                .push(format!("spec.http[0].retries.retryOn: {reason:?} is ignored: nothing is sent again for it")),
            other => match other.parse() {
                Ok(code @ 400..=599) => drop(codes.insert(code)),
                _ => {
                    return Err(format!(
                        "spec.http[0].retries.retryOn: {other:?} is not known to this version of Leno"
                    ));
                }
            },
        }
    }
    let retry = Retry {
        codes: codes.into_iter().collect(),
        attempts: Some(attempts),
        backoff: limit("retries.backoff", it.backoff)?,
    };
    Ok((Some(retry), limit("retries.perTryTimeout", it.per_try_timeout)?))
}

/// The share of requests: none of them where it is not written, as in Istio.
fn share(field: &str, percentage: Option<&FaultPercent>, percent: Option<Percent>, warnings: &mut Vec<String>) -> u32 {
    let Some(Percent(share)) = percentage.map(|it| it.value).or(percent) else {
        warnings.push(format!("spec.http[0].fault.{field} has no percentage, so it happens to NO request"));
        return 0;
    };
    share
}

/// A request that waits is held in memory.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);

fn fault(it: &HttpFaultInjection, warnings: &mut Vec<String>) -> Result<Fault, String> {
    let mut fault = Fault::default();
    if let Some(delay) = &it.delay {
        let Some(GoDuration(wait)) = delay.fixed_delay.filter(|_| delay.exponential_delay.is_none()) else {
            return Err("spec.http[0].fault.delay has to have a fixedDelay, and nothing else".to_owned());
        };
        if !(Duration::from_millis(1)..=LONGEST_DELAY).contains(&wait) {
            return Err(format!("spec.http[0].fault.delay.fixedDelay is {wait:?}, and has to be from 1ms to 1h"));
        }
        fault.delay = Some((share("delay", delay.percentage.as_ref(), delay.percent, warnings), wait));
    }
    if let Some(abort) = &it.abort {
        let failure = match (abort.http_status, abort.grpc_status.as_deref(), abort.http2_error) {
            (Some(status @ 200..=599), None, None) => Abort::Status(u16::try_from(status).unwrap_or(500)),
            (None, Some(status), None) => Abort::Grpc(
                grpc_status(status)
                    .ok_or_else(|| format!("spec.http[0].fault.abort.grpcStatus: {status:?} is no status of gRPC"))?,
            ),
            _ => {
                return Err(
                    "spec.http[0].fault.abort has to have a httpStatus from 200 to 599 or a grpcStatus".to_owned()
                );
            }
        };
        fault.abort = Some((share("abort", abort.percentage.as_ref(), None, warnings), failure));
    }
    Ok(fault)
}

/// A status by its name or number (gRPC: "Status codes").
fn grpc_status(text: &str) -> Option<u16> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let by_name = NAMES.iter().position(|name| *name == text).and_then(|number| u16::try_from(number).ok());
    by_name.or_else(|| text.parse().ok().filter(|number| *number <= 16))
}
