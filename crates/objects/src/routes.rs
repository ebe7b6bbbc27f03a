//! The Gateway API's routes: HTTPRoute, GRPCRoute, TLSRoute, TCPRoute and what permits them to refer to other namespaces.

pub(crate) mod rules;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error as _};

use super::decode::{Context, Field, object, word};
use super::meta::ObjectMeta;
use super::scalars::PortNumber;

object! {
    /// Where HTTP requests go.
    pub struct HTTPRoute {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The route.
        spec: HTTPRouteSpec = "spec" (required),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)).
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of an HTTPRoute.
    pub struct HTTPRouteSpec {
        /// What it belongs to.
        parent_refs: Vec<ParentReference> = "parentRefs",
        /// Host names. They have no meaning where the parent is a Service.
        hostnames: Vec<String> = "hostnames",
        /// Its rules, in order. Without any, there is one that matches every request.
        rules: Option<Vec<HTTPRouteRule>> = "rules" (check rules::http_rules),
    }
    silent ["useDefaultGateways"]
}

object! {
    /// What a route belongs to.
    pub struct ParentReference {
        /// API group; the Gateway API's if absent, empty for the core group.
        group: Option<String> = "group",
        /// Kind; `Gateway` if absent.
        kind: Option<String> = "kind",
        /// Namespace. Empty means that of the route.
        namespace: String = "namespace",
        /// Name.
        name: String = "name" (required),
        /// A part of the parent.
        section_name: Option<String> = "sectionName",
        /// The one port of the parent.
        port: Option<PortNumber> = "port",
    }
}

object! {
    /// A rule of an HTTPRoute.
    pub struct HTTPRouteRule {
        /// Name.
        name: Option<String> = "name",
        /// Alternatives. Without any, the rule matches every request.
        matches: Vec<HTTPRouteMatch> = "matches",
        /// What is done to requests.
        filters: Vec<HTTPRouteFilter> = "filters",
        /// Where they go.
        backend_refs: Vec<HTTPBackendRef> = "backendRefs",
        /// How long they may take.
        timeouts: Option<RouteTimeouts> = "timeouts",
        /// When they are sent again.
        retry: Option<RouteRetry> = "retry",
        /// How sessions stay at one endpoint.
        session_persistence: Option<RouteSession> = "sessionPersistence",
    }
}

object! {
    /// The conditions of one alternative; all must hold.
    pub struct HTTPRouteMatch {
        /// Condition on the path; a prefix of `/` if absent.
        path: Option<HTTPPathMatch> = "path",
        /// Conditions on headers.
        headers: Vec<HTTPValueMatch> = "headers",
        /// Conditions on query parameters.
        query_params: Vec<HTTPValueMatch> = "queryParams",
        /// The method.
        method: Option<String> = "method" (check rules::method),
    }
}

object! {
    /// A condition on the path.
    pub struct HTTPPathMatch {
        /// How the value is compared.
        kind: PathMatchType = "type",
        /// The value; `/` if absent.
        value: Option<String> = "value",
    }
}

word! {
    /// How a path is compared.
    pub enum PathMatchType {
        /// By whole segments from the beginning.
        #[default]
        PathPrefix = "PathPrefix",
        /// As a whole.
        Exact = "Exact",
        /// By a regular expression.
        RegularExpression = "RegularExpression",
    }
}

object! {
    /// A condition on a header or a query parameter.
    pub struct HTTPValueMatch {
        /// How the value is compared.
        kind: ValueMatchType = "type",
        /// Name of the header or parameter.
        name: String = "name" (required),
        /// The value.
        value: String = "value" (required),
    }
}

word! {
    /// How a value is compared.
    pub enum ValueMatchType {
        /// As a whole.
        #[default]
        Exact = "Exact",
        /// By a regular expression.
        RegularExpression = "RegularExpression",
    }
}

object! {
    /// One thing that is done to requests.
    pub struct HTTPRouteFilter {
        /// Which; the field of that name has the rest.
        kind: HTTPRouteFilterType = "type" (required),
        /// For `RequestHeaderModifier`.
        request_header_modifier: Option<HTTPHeaderFilter> = "requestHeaderModifier",
        /// For `ResponseHeaderModifier`.
        response_header_modifier: Option<HTTPHeaderFilter> = "responseHeaderModifier",
        /// For `RequestMirror`.
        request_mirror: Option<Box<HTTPRequestMirrorFilter>> = "requestMirror",
        /// For `RequestRedirect`.
        request_redirect: Option<Box<HTTPRequestRedirectFilter>> = "requestRedirect",
        /// For `URLRewrite`.
        url_rewrite: Option<Box<HTTPURLRewriteFilter>> = "urlRewrite",
        /// For `CORS`.
        cors: Option<Box<HTTPCORSFilter>> = "cors",
        /// For `ExtensionRef`.
        extension_ref: Option<LocalObjectReference> = "extensionRef",
    }
    silent ["externalAuth"]
}

word! {
    /// What is done to requests.
    pub enum HTTPRouteFilterType {
        /// Headers of requests are changed.
        #[default]
        RequestHeaderModifier = "RequestHeaderModifier",
        /// Headers of responses are changed.
        ResponseHeaderModifier = "ResponseHeaderModifier",
        /// A copy goes somewhere else.
        RequestMirror = "RequestMirror",
        /// The client is sent somewhere else.
        RequestRedirect = "RequestRedirect",
        /// Host or path is changed.
        URLRewrite = "URLRewrite",
        /// Browsers are told which origins may ask.
        CORS = "CORS",
        /// Somebody else is asked.
        ExternalAuth = "ExternalAuth",
        /// What an object of another API says.
        ExtensionRef = "ExtensionRef",
    }
}

object! {
    /// Changes of headers.
    pub struct HTTPHeaderFilter {
        /// Replaces values.
        set: Vec<HTTPHeader> = "set",
        /// Adds values.
        add: Vec<HTTPHeader> = "add",
        /// Removes headers.
        remove: Vec<String> = "remove",
    }
}

object! {
    /// A header.
    pub struct HTTPHeader {
        /// Name.
        name: String = "name" (required),
        /// Value.
        value: String = "value" (required),
    }
}

object! {
    /// A copy of requests.
    pub struct HTTPRequestMirrorFilter {
        /// Where it goes.
        backend_ref: BackendReference = "backendRef" (required),
        /// How many of a hundred requests; all if neither this nor a fraction is given.
        percent: Option<u32> = "percent" (check rules::percent),
        /// Which part of the requests.
        fraction: Option<Fraction> = "fraction" (check rules::fraction),
    }
}

object! {
    /// A part of all.
    pub struct Fraction {
        /// This many.
        numerator: u32 = "numerator" (required),
        /// Of this many.
        denominator: u32 = "denominator" (default 100),
    }
}

object! {
    /// Where the client is sent.
    pub struct HTTPRequestRedirectFilter {
        /// Scheme; the request's if absent.
        scheme: Option<String> = "scheme" (check rules::scheme),
        /// Host name; the request's if absent.
        hostname: Option<String> = "hostname",
        /// Change of the path.
        path: Option<HTTPPathModifier> = "path" (check rules::path_modifier),
        /// Port.
        port: Option<PortNumber> = "port",
        /// Status.
        status_code: u32 = "statusCode" (default 302),
    }
}

object! {
    /// A change of what the request is addressed to.
    pub struct HTTPURLRewriteFilter {
        /// Host name.
        hostname: Option<String> = "hostname",
        /// Change of the path.
        path: Option<HTTPPathModifier> = "path" (check rules::path_modifier),
    }
}

object! {
    /// A change of a path.
    pub struct HTTPPathModifier {
        /// Which.
        kind: HTTPPathModifierType = "type" (required),
        /// The whole new path.
        replace_full_path: Option<String> = "replaceFullPath",
        /// What stands in the place of the prefix that matched.
        replace_prefix_match: Option<String> = "replacePrefixMatch",
    }
}

word! {
    /// How a path is changed.
    pub enum HTTPPathModifierType {
        /// As a whole.
        #[default]
        ReplaceFullPath = "ReplaceFullPath",
        /// The prefix that matched.
        ReplacePrefixMatch = "ReplacePrefixMatch",
    }
}

object! {
    /// Answers for cross-origin requests.
    pub struct HTTPCORSFilter {
        /// Origins.
        allow_origins: Vec<String> = "allowOrigins",
        /// Whether requests may carry credentials.
        allow_credentials: bool = "allowCredentials",
        /// Methods.
        allow_methods: Vec<String> = "allowMethods",
        /// Headers of requests.
        allow_headers: Vec<String> = "allowHeaders",
        /// Headers of responses.
        expose_headers: Vec<String> = "exposeHeaders",
        /// Seconds for which an answer may be kept.
        max_age: u32 = "maxAge" (default 5),
    }
}

object! {
    /// An object of the route's own namespace.
    pub struct LocalObjectReference {
        /// API group.
        group: String = "group",
        /// Kind.
        kind: String = "kind",
        /// Name.
        name: String = "name" (required),
    }
}

object! {
    /// Where a copy of requests goes.
    pub struct BackendReference {
        /// API group; empty for the core group.
        group: String = "group",
        /// Kind; `Service` if absent.
        kind: Option<String> = "kind",
        /// Name.
        name: String = "name" (required),
        /// Namespace. Empty means that of the route.
        namespace: String = "namespace",
        /// Port.
        port: Option<PortNumber> = "port",
    }
}

object! {
    /// Where requests go, and their share.
    pub struct HTTPBackendRef {
        /// API group; empty for the core group.
        group: String = "group",
        /// Kind; `Service` if absent.
        kind: Option<String> = "kind",
        /// Name.
        name: String = "name" (required),
        /// Namespace. Empty means that of the route.
        namespace: String = "namespace",
        /// Port.
        port: Option<PortNumber> = "port",
        /// Share.
        weight: u32 = "weight" (default 1),
        /// What is done to requests that go here.
        filters: Vec<HTTPRouteFilter> = "filters",
    }
}

impl HTTPBackendRef {
    /// Without its share.
    pub fn reference(&self) -> BackendReference {
        BackendReference {
            group: self.group.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            port: self.port,
        }
    }
}

object! {
    /// How long a request may take.
    pub struct RouteTimeouts {
        /// All of it.
        request: Option<RouteDuration> = "request",
        /// One attempt at a backend.
        backend_request: Option<RouteDuration> = "backendRequest",
    }
}

object! {
    /// When a request is sent again.
    pub struct RouteRetry {
        /// Status codes that are a reason.
        codes: Vec<u32> = "codes" (check rules::retry_codes),
        /// Most attempts after the first.
        attempts: Option<u32> = "attempts",
        /// Shortest wait between attempts.
        backoff: Option<RouteDuration> = "backoff",
    }
}

object! {
    /// How the requests of a session stay at one endpoint.
    pub struct RouteSession {
        /// Name of the cookie or header.
        session_name: Option<String> = "sessionName" (check rules::session_name),
        /// Age at which a session ends.
        absolute_timeout: Option<RouteDuration> = "absoluteTimeout",
        /// What carries the token.
        kind: RouteSessionType = "type",
        /// More about the cookie.
        cookie_config: Option<CookieConfig> = "cookieConfig",
    }
}

word! {
    /// What carries a session's token.
    pub enum RouteSessionType {
        /// A cookie.
        #[default]
        Cookie = "Cookie",
        /// A header.
        Header = "Header",
    }
}

object! {
    /// More about a session's cookie.
    pub struct CookieConfig {
        /// Whether the client keeps it.
        lifetime_type: CookieLifetime = "lifetimeType",
    }
}

word! {
    /// Whether the client keeps a cookie.
    pub enum CookieLifetime {
        /// Until its own session ends.
        #[default]
        Session = "Session",
        /// Until the session's age ends it.
        Permanent = "Permanent",
    }
}

object! {
    /// Where gRPC calls go.
    pub struct GRPCRoute {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The route.
        spec: GRPCRouteSpec = "spec" (required),
    }
    besides {
        /// As in [`HTTPRoute`].
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a GRPCRoute.
    pub struct GRPCRouteSpec {
        /// What it belongs to.
        parent_refs: Vec<ParentReference> = "parentRefs",
        /// Host names. They have no meaning where the parent is a Service.
        hostnames: Vec<String> = "hostnames",
        /// Its rules, in order.
        rules: Vec<GRPCRouteRule> = "rules",
    }
    silent ["useDefaultGateways"]
}

object! {
    /// A rule of a GRPCRoute.
    pub struct GRPCRouteRule {
        /// Name.
        name: Option<String> = "name",
        /// Alternatives. Without any, the rule matches every call.
        matches: Vec<GRPCRouteMatch> = "matches",
        /// What is done to calls.
        filters: Vec<HTTPRouteFilter> = "filters",
        /// Where they go.
        backend_refs: Vec<HTTPBackendRef> = "backendRefs",
        /// How sessions stay at one endpoint.
        session_persistence: Option<RouteSession> = "sessionPersistence",
    }
}

object! {
    /// The conditions of one alternative; all must hold.
    pub struct GRPCRouteMatch {
        /// Condition on the method.
        method: Option<GRPCMethodMatch> = "method" (check rules::grpc_method),
        /// Conditions on headers.
        headers: Vec<HTTPValueMatch> = "headers",
    }
}

object! {
    /// A condition on a gRPC service and method.
    pub struct GRPCMethodMatch {
        /// How both are compared.
        kind: ValueMatchType = "type",
        /// The service.
        service: Option<String> = "service",
        /// The method.
        method: Option<String> = "method",
    }
}

object! {
    /// Where TLS connections go, by the server name that their client asks for.
    pub struct TLSRoute {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The route.
        spec: TLSRouteSpec = "spec" (required),
    }
    besides {
        /// As in [`HTTPRoute`].
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a TLSRoute.
    pub struct TLSRouteSpec {
        /// What it belongs to.
        parent_refs: Vec<ParentReference> = "parentRefs",
        /// The server names (SNI); `*.` at the beginning stands for one or more labels.
        hostnames: Vec<String> = "hostnames" (required check rules::server_names),
        /// Its one rule.
        rules: Vec<ConnectionRouteRule> = "rules" (required check rules::one_rule),
    }
    silent ["useDefaultGateways"]
}

object! {
    /// Where TCP connections go.
    pub struct TCPRoute {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The route.
        spec: TCPRouteSpec = "spec" (required),
    }
    besides {
        /// As in [`HTTPRoute`].
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a TCPRoute.
    pub struct TCPRouteSpec {
        /// What it belongs to.
        parent_refs: Vec<ParentReference> = "parentRefs",
        /// Its one rule.
        rules: Vec<ConnectionRouteRule> = "rules" (required check rules::one_rule),
    }
    silent ["useDefaultGateways"]
}

object! {
    /// The rule of a TLSRoute or TCPRoute.
    pub struct ConnectionRouteRule {
        /// Name.
        name: Option<String> = "name",
        /// Where connections go.
        backend_refs: Vec<ConnectionBackendRef> = "backendRefs",
    }
}

object! {
    /// Where connections go, and their share.
    pub struct ConnectionBackendRef {
        /// API group; empty for the core group.
        group: String = "group",
        /// Kind; `Service` if absent.
        kind: Option<String> = "kind",
        /// Name.
        name: String = "name" (required),
        /// Namespace. Empty means that of the route.
        namespace: String = "namespace",
        /// Port.
        port: Option<PortNumber> = "port",
        /// Share.
        weight: u32 = "weight" (default 1),
    }
}

impl ConnectionBackendRef {
    /// Without its share.
    pub fn reference(&self) -> BackendReference {
        BackendReference {
            group: self.group.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            port: self.port,
        }
    }
}

object! {
    /// Permits objects of other namespaces to refer to objects of this one.
    pub struct ReferenceGrant {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The permission.
        spec: ReferenceGrantSpec = "spec" (required),
    }
    silent ["apiVersion", "kind"]
}

object! {
    /// The contents of a ReferenceGrant.
    pub struct ReferenceGrantSpec {
        /// Who may refer.
        from: Vec<ReferenceGrantFrom> = "from" (required),
        /// To what.
        to: Vec<ReferenceGrantTo> = "to" (required),
    }
}

object! {
    /// Who may refer.
    pub struct ReferenceGrantFrom {
        /// API group.
        group: String = "group",
        /// Kind.
        kind: String = "kind" (required),
        /// Namespace.
        namespace: String = "namespace" (required),
    }
}

object! {
    /// What may be referred to.
    pub struct ReferenceGrantTo {
        /// API group; empty for the core group.
        group: String = "group",
        /// Kind.
        kind: String = "kind" (required),
        /// Name; all of the kind if absent.
        name: Option<String> = "name",
    }
}

/// A duration as the Gateway API writes it (GEP-2257): up to four numbers with `h`, `m`, `s` or `ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RouteDuration(pub Duration);

impl FromStr for RouteDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a duration such as 1h30m, 10s or 500ms");
        let mut rest = text;
        let mut sum = Duration::ZERO;
        for _ in 0..4 {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 || digits > 5 {
                return Err(bad());
            }
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let (unit, milliseconds) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)]
                .into_iter()
                .find(|(unit, _)| rest.starts_with(unit))
                .ok_or_else(bad)?;
            sum += Duration::from_millis(number * milliseconds);
            rest = &rest[unit.len()..];
            if rest.is_empty() {
                return Ok(Self(sum));
            }
        }
        Err(bad())
    }
}

impl<'de> Field<'de> for RouteDuration {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        let text = String::decode(from, cx)?;
        text.parse().map_err(|why| D::Error::custom(format!("{}: {why}", cx.path())))
    }
}

impl fmt::Display for RouteDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
