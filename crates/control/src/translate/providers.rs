//! The external authorisers that policies with action CUSTOM may name: `extensionProviders` of Istio's MeshConfig, which is in a
//! ConfigMap.
//!
//! Whoever brings the ConfigMap has made JSON of its YAML: this crate reads no files, whatever they are written in.
//!
//! A provider with a field that can't be honoured is none: half of it would ask less of a request than its author meant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Name;
use leno_model::http::{Authorizer, CheckedBody};
use leno_objects::{ConfigMap, GoDuration, ObjectKey, ObjectStore, did_you_mean};
use serde_json::{Map, Value};

use super::{Options, provider_http};
use crate::hint::hint;

/// The entry of the mesh's configuration in its ConfigMap: YAML as it is written, JSON as it is read here, which
/// [`mesh_config_entry`] makes of it.
pub const MESH_CONFIG_ENTRY: &str = "mesh";

/// The entry as it is read here. Of a text that is no YAML it is the reason, which no configuration can be mistaken for: that is
/// a mapping.
pub fn mesh_config_entry(read: Result<Value, String>) -> String {
    match read {
        Ok(Value::String(_)) => Value::from(NO_MAPPING).to_string(),
        Ok(value) => value.to_string(),
        // A reader of YAML goes on with a picture of the place.
        Err(why) => Value::from(why.lines().next().unwrap_or_default().trim_start_matches("error: ")).to_string(),
    }
}

const NO_MAPPING: &str = "it is no mapping";

/// How long an answer may take where a provider does not say: Istio's value.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// The status without an answer where a provider does not say: Istio's value.
const FORBIDDEN: u16 = 403;

/// The longest body that an authoriser may be told of, bytes: a waypoint holds it meanwhile.
const LONGEST_BODY: u32 = 16 << 20;

/// The providers of a mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Providers {
    /// By name, or why one is none.
    known: BTreeMap<Name, Result<Arc<Authorizer>, String>>,
    /// Why the configuration can't be read. Then the providers are those of the last one that could be.
    unreadable: Option<String>,
    is_there: bool,
}

impl Providers {
    /// Those of a mesh, and the warnings for their author. A configuration that can't be read leaves those that were `before`.
    pub(super) fn of(options: &Options, store: &ObjectStore, before: &Self) -> (Self, Vec<String>) {
        let ObjectKey { namespace, name, .. } = &options.mesh_config;
        let Some(object) = ConfigMap::get(store, namespace, name) else {
            return (Self::default(), Vec::new());
        };
        let mut out = Self { is_there: true, ..Self::default() };
        let text = object.data.get(MESH_CONFIG_ENTRY).map(String::as_str).unwrap_or_default();
        if text.trim().is_empty() {
            return (out, Vec::new());
        }
        let read: Result<Value, _> = serde_json::from_str(text);
        match read.map_err(|error| error.to_string()).and_then(|value| out.read(&value)) {
            Ok(warnings) => (out, warnings),
            Err(why) => {
                let warning = format!(
                    "data.{MESH_CONFIG_ENTRY} can't be read, so the providers of the last good version stay, if there was one: {why}"
                );
                (Self { unreadable: Some(why), is_there: true, known: before.known.clone() }, vec![warning])
            }
        }
    }

    fn read(&mut self, config: &Value) -> Result<Vec<String>, String> {
        // Of an entry that has comments only.
        if config.is_null() {
            return Ok(Vec::new());
        }
        let config = match config {
            Value::Object(config) => config,
            Value::String(why) => return Err(why.clone()),
            _ => return Err(NO_MAPPING.to_owned()),
        };
        let mut warnings = Vec::new();
        let others: Vec<&str> = config.keys().map(String::as_str).filter(|key| *key != "extensionProviders").collect();
        if !others.is_empty() {
            warnings.push(format!(
                "of the mesh configuration, only extensionProviders is read; not in force: {}",
                others.join(", ")
            ));
        }
        let none = Vec::new();
        let listed = match config.get("extensionProviders") {
            None | Some(Value::Null) => &none,
            Some(listed) => listed.as_array().ok_or("extensionProviders is no list")?,
        };
        for (index, one) in listed.iter().enumerate() {
            let at = format!("extensionProviders[{index}]");
            let one = one.as_object().ok_or_else(|| format!("{at} is no mapping"))?;
            let name = one.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
            let name: Name = name.ok_or_else(|| format!("{at} has no name"))?.into();
            let authorizer = match self.known.contains_key(&name) {
                true => Err("two providers have this name".to_owned()),
                false => provider(&name, one),
            };
            // Other programs' providers are none of this.
            if let Err(why) = &authorizer
                && one.keys().any(|key| key.starts_with("envoyExtAuthz"))
            {
                warnings.push(format!("{at} ({name}): {why}"));
            }
            self.known.insert(name, authorizer);
        }
        Ok(warnings)
    }

    /// The authoriser that a policy names.
    ///
    /// # Errors
    /// If it can't be asked, with the reason.
    pub(super) fn get(&self, options: &Options, name: &str) -> Result<Arc<Authorizer>, String> {
        let place = place(options);
        match (self.known.get(name), &self.unreadable) {
            (Some(Ok(authorizer)), _) => Ok(authorizer.clone()),
            (_, Some(why)) => Err(format!("{place} can't be read: {why}")),
            (Some(Err(why)), None) => Err(format!("provider {name:?} of {place}: {why}")),
            (None, None) if self.is_there => {
                let meant = hint(did_you_mean(name, self.known.keys().map(|known| &**known)));
                Err(format!("{place} has no provider {name:?} in extensionProviders{meant}"))
            }
            (None, None) => Err(format!("no provider {name:?} is known, because there is no {place}")),
        }
    }

    /// Whether an authoriser is at this host name.
    pub(super) fn are_at(&self, hostname: &str) -> bool {
        self.known.values().flatten().any(|authorizer| *authorizer.hostname == *hostname)
    }

    /// What the author of a policy is told if its provider is that of an earlier configuration.
    pub(super) fn outdated(&self, options: &Options) -> Option<String> {
        let why = self.unreadable.as_ref()?;
        Some(format!("the provider is that of the last good version, because {} can't be read: {why}", place(options)))
    }
}

fn place(options: &Options) -> String {
    let ObjectKey { namespace, name, .. } = &options.mesh_config;
    format!("ConfigMap {namespace}/{name} ({MESH_CONFIG_ENTRY})")
}

/// The authoriser that a provider is.
fn provider(name: &Name, fields: &Map<String, Value>) -> Result<Arc<Authorizer>, String> {
    let mut kinds = fields.iter().filter(|(key, _)| *key != "name");
    let (kind, fields) = match (kinds.next(), kinds.next()) {
        (Some(one), None) => one,
        (None, _) => return Err("it does not say what it is".to_owned()),
        (Some(_), Some(_)) => return Err("it is several things".to_owned()),
    };
    let http = match kind.as_str() {
        "envoyExtAuthzGrpc" => None,
        "envoyExtAuthzHttp" => Some(Box::default()),
        other => return Err(format!("{other} is no authoriser")),
    };
    let fields = fields.as_object().ok_or_else(|| format!("{kind} is no mapping"))?;
    let mut out = Authorizer {
        provider: name.clone(),
        namespace: "".into(),
        hostname: "".into(),
        port: 0,
        timeout: TEN_MINUTES,
        fail_open: false,
        status_on_error: FORBIDDEN,
        body: None,
        http,
    };
    for (field, value) in fields {
        let at = format!("{kind}.{field}");
        let bad = |what: &str| format!("{at} is not {what}");
        let number = || number(value).and_then(|number| u16::try_from(number).ok());
        match field.as_str() {
            "service" => {
                let text = value.as_str().ok_or_else(|| bad("a text"))?;
                let (namespace, host) = text.split_once('/').unwrap_or(("", text));
                if !host.contains('.') || host.contains(['*', '/', ' ']) {
                    return Err(bad("the whole host name of a Service, such as opa.auth.svc.cluster.local"));
                }
                out.namespace = namespace.into();
                out.hostname = host.trim_end_matches('.').to_ascii_lowercase().into();
            }
            "port" => out.port = number().filter(|port| *port > 0).ok_or_else(|| bad("a port number"))?,
            "timeout" => {
                let duration = value.as_str().and_then(|text| text.parse::<GoDuration>().ok());
                let duration = duration.filter(|it| it.0 >= Duration::from_millis(1));
                out.timeout = duration.ok_or_else(|| bad("a duration such as 0.5s or 10s"))?.0;
            }
            "failOpen" => out.fail_open = value.as_bool().ok_or_else(|| bad("true or false"))?,
            "statusOnError" => {
                let status = number().filter(|status| (200..600).contains(status));
                out.status_on_error = status.ok_or_else(|| bad("an HTTP status from 200 to 599"))?;
            }
            // Routes are looked for afterwards in any case.
            "clearRouteCache" if value.is_boolean() => {}
            "includeRequestBodyInCheck" => out.body = Some(body(&at, value)?),
            other => {
                let known = out.http.as_deref_mut().map(|http| provider_http::read(http, other, &at, value));
                if !known.transpose()?.unwrap_or(false) {
                    return Err(format!("{at}: this version of Leno does not know this field"));
                }
            }
        }
    }
    if out.hostname.is_empty() || out.port == 0 {
        return Err(format!("{kind} needs service and port"));
    }
    Ok(Arc::new(out))
}

/// A number, which is often written as a text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// What an authoriser is told of bodies, as it is written at this place.
fn body(at: &str, value: &Value) -> Result<CheckedBody, String> {
    let fields = value.as_object().ok_or_else(|| format!("{at} is no mapping"))?;
    let mut out = CheckedBody { most: 0, partial: false, raw: false };
    for (field, value) in fields {
        let flag = || value.as_bool().ok_or_else(|| format!("{at}.{field} is not true or false"));
        match field.as_str() {
            "maxRequestBytes" => {
                let most = number(value).and_then(|most| u32::try_from(most).ok());
                let most = most.filter(|most| (1..=LONGEST_BODY).contains(most));
                out.most = most.ok_or_else(|| format!("{at}.{field} is not a number from 1 to {LONGEST_BODY}"))?;
            }
            "allowPartialMessage" => out.partial = flag()?,
            "packAsBytes" => out.raw = flag()?,
            _ => return Err(format!("{at}.{field}: this version of Leno does not know this field")),
        }
    }
    if out.most == 0 {
        return Err(format!("{at} needs maxRequestBytes"));
    }
    Ok(out)
}

#[cfg(test)]
#[path = "providers_tests.rs"]
mod tests;
