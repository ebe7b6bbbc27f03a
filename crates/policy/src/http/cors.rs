//! Cross-origin requests of browsers (the CORS protocol of the Fetch standard, §3.2).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Name;
use leno_model::http::Cors;

use super::error::RuleError;
use super::request::Request;

/// What a response of a backend may say of origins; the rule's own answer takes its place.
const ANSWERED: [HeaderName; 3] =
    [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS];

/// Rules for cross-origin requests, compiled once.
#[derive(Debug, Clone)]
pub(super) struct Origins {
    allowed: Vec<Allowed>,
    any: bool,
    credentials: bool,
    methods: List,
    headers: List,
    expose: List,
    max_age: HeaderValue,
}

/// An origin that may read responses.
#[derive(Debug, Clone)]
struct Allowed {
    scheme: Name,
    /// Without `*`.
    host: Name,
    any_label: bool,
    port: Option<u16>,
}

/// A list of names, or all names.
#[derive(Debug, Clone)]
enum List {
    None,
    All,
    These(HeaderValue),
}

impl List {
    fn new(names: &[Name]) -> Result<Self, RuleError> {
        if names.is_empty() {
            return Ok(Self::None);
        }
        if names.iter().any(|name| &**name == "*") {
            return Ok(Self::All);
        }
        if let Some(bad) = names.iter().find(|name| HeaderName::from_bytes(name.as_bytes()).is_err()) {
            return Err(RuleError::HeaderName(bad.clone()));
        }
        let joined = names.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
        HeaderValue::from_str(&joined).map(Self::These).map_err(|_| RuleError::HeaderName(joined.into()))
    }

    /// The value of a response's header. `asked` is what the browser asked for, which stands in the place of `*` where
    /// `*` would have no meaning.
    fn value(&self, credentials: bool, asked: Option<&HeaderValue>) -> Option<HeaderValue> {
        match self {
            Self::None => None,
            Self::These(names) => Some(names.clone()),
            Self::All if credentials => asked.cloned(),
            Self::All => Some(HeaderValue::from_static("*")),
        }
    }
}

impl Allowed {
    fn new(origin: &Name) -> Result<Self, RuleError> {
        let bad = || RuleError::Origin(origin.clone());
        let (scheme, rest) = origin.split_once("://").ok_or_else(bad)?;
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().map_err(|_| bad())?)),
            _ => (rest, None),
        };
        let any_label = host.starts_with('*');
        let host = host.strip_prefix('*').unwrap_or(host);
        if !matches!(scheme, "http" | "https") || host.contains(['*', '/', '@', '?', '#', ' ']) {
            return Err(bad());
        }
        if host.is_empty() && !any_label {
            return Err(bad());
        }
        Ok(Self { scheme: scheme.into(), host: host.to_ascii_lowercase().into(), any_label, port })
    }

    fn allows(&self, origin: &str) -> bool {
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => match port.parse() {
                Ok(port) => (host, Some(port)),
                Err(_) => return false,
            },
            _ => (rest, None),
        };
        let of_scheme = if scheme == "https" { 443 } else { 80 };
        let same_host = if self.any_label {
            host.len() > self.host.len() && host.ends_with(&*self.host)
        } else {
            host == &*self.host
        };
        scheme == &*self.scheme && same_host && port.unwrap_or(of_scheme) == self.port.unwrap_or(of_scheme)
    }
}

impl Origins {
    pub(super) fn new(cors: &Cors) -> Result<Self, RuleError> {
        let any = cors.allow_origins.iter().any(|origin| &**origin == "*");
        Ok(Self {
            allowed: cors
                .allow_origins
                .iter()
                .filter(|origin| &***origin != "*")
                .map(Allowed::new)
                .collect::<Result<_, _>>()?,
            any,
            credentials: cors.allow_credentials,
            methods: List::new(&cors.allow_methods)?,
            headers: List::new(&cors.allow_headers)?,
            expose: List::new(&cors.expose_headers)?,
            max_age: HeaderValue::from(cors.max_age),
        })
    }

    /// The answer to a preflight (status 204); `None` if the request is none. For an origin that is not allowed, the
    /// answer says nothing of origins, and the browser sends no request.
    pub(super) fn preflight(&self, request: &Request<'_>) -> Option<HeaderMap> {
        let asked_method = request.headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        if request.method != "OPTIONS" || request.origin().is_none() || asked_method.is_none() {
            return None;
        }
        let mut answer = HeaderMap::new();
        let Some(origin) = self.allowed(request) else { return Some(answer) };
        self.tell(origin, &mut answer);
        let asked_headers = request.headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let lists = [
            (ACCESS_CONTROL_ALLOW_METHODS, self.methods.value(self.credentials, asked_method)),
            (ACCESS_CONTROL_ALLOW_HEADERS, self.headers.value(self.credentials, asked_headers)),
        ];
        for (name, value) in lists {
            if let Some(value) = value {
                answer.insert(name, value);
            }
        }
        answer.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        Some(answer)
    }

    /// What the response to a request from another origin has to say; empty if the request names no origin.
    pub(super) fn of_response(&self, request: &Request<'_>) -> Option<HeaderMap> {
        request.headers.get(ORIGIN)?;
        let mut answer = HeaderMap::new();
        if let Some(origin) = self.allowed(request) {
            self.tell(origin, &mut answer);
            if let Some(value) = self.expose.value(self.credentials, None) {
                answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, value);
            }
        }
        Some(answer)
    }

    /// Puts the answer into a response in place of what the backend said.
    pub(super) fn apply(answer: &HeaderMap, response: &mut HeaderMap) {
        for name in ANSWERED {
            response.remove(name);
        }
        for (name, value) in answer {
            if *name == VARY {
                response.append(VARY, value.clone());
            } else {
                response.insert(name, value.clone());
            }
        }
    }

    fn allowed<'a>(&self, request: &Request<'a>) -> Option<&'a HeaderValue> {
        let origin = request.origin()?;
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        (self.any || self.allowed.iter().any(|allowed| allowed.allows(&text))).then_some(origin)
    }

    fn tell(&self, origin: &HeaderValue, answer: &mut HeaderMap) {
        if self.any && !self.credentials {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        } else {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            // A cache must not give one origin's response to another.
            answer.insert(VARY, HeaderValue::from_static("Origin"));
        }
        if self.credentials {
            answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }
}

#[cfg(test)]
#[path = "cors_tests.rs"]
mod tests;
