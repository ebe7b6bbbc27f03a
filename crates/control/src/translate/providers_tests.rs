#![allow(clippy::unwrap_used, reason = "test code")]

use leno_model::http::HttpCheck;
use leno_objects::{Mode, decode};

use super::*;

/// What becomes of YAML, which is JSON when it comes here.
fn of(mesh: &str) -> (Providers, Vec<String>) {
    after(&Providers::default(), mesh)
}

/// The same, where there was another configuration before.
fn after(before: &Providers, mesh: &str) -> (Providers, Vec<String>) {
    let json = mesh_config_entry(serde_saphyr::from_str(mesh).map_err(|error| format!("no YAML: {error}")));
    let text = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: istio, namespace: istio-system}}, data: {{mesh: {json:?}}}}}"
    );
    let decoded = serde_saphyr::with_deserializer_from_str(&text, |from| {
        decode(leno_objects::Kind::ConfigMap, Mode::Strict, from)
    });
    let mut store = ObjectStore::default();
    store.upsert(decoded.unwrap().object);
    Providers::of(&Options::default(), &store, before)
}

fn get(providers: &Providers, name: &str) -> Result<Arc<Authorizer>, String> {
    providers.get(&Options::default(), name)
}

const GOOD: &str = "
extensionProviders:
- name: all
  envoyExtAuthzGrpc:
    service: auth/OPA.auth.svc.cluster.local
    port: \"9191\"
    timeout: 0.25s
    failOpen: true
    statusOnError: \"503\"
    clearRouteCache: true
    includeRequestBodyInCheck: {maxRequestBytes: 8192, allowPartialMessage: true, packAsBytes: true}
- name: least
  envoyExtAuthzGrpc: {service: opa.auth.svc.cluster.local, port: 9191}
- name: zipkin
  zipkin: {service: zipkin.istio-system.svc.cluster.local, port: 9411}
";

#[test]
fn a_provider_is_read_with_istios_defaults() {
    let (providers, warnings) = of(GOOD);
    assert_eq!(warnings, Vec::<String>::new());
    let all = get(&providers, "all").unwrap();
    assert_eq!((&*all.namespace, &*all.hostname, all.port), ("auth", "opa.auth.svc.cluster.local", 9191));
    assert_eq!((all.timeout, all.fail_open, all.status_on_error), (Duration::from_millis(250), true, 503));
    assert_eq!(all.body, Some(CheckedBody { most: 8192, partial: true, raw: true }));
    let least = get(&providers, "least").unwrap();
    assert_eq!((&*least.namespace, least.timeout, least.body), ("", Duration::from_secs(600), None));
    assert_eq!((least.fail_open, least.status_on_error), (false, 403));
    assert!(get(&providers, "zipkin").unwrap_err().contains("is no authoriser"));
    assert!(get(&providers, "other").unwrap_err().ends_with("has no provider \"other\" in extensionProviders"));
    assert!(get(&providers, "lest").unwrap_err().ends_with("; did you mean least?"));
    let without = Providers::of(&Options::default(), &ObjectStore::default(), &providers).0;
    assert!(get(&without, "all").unwrap_err().contains("there is no ConfigMap istio-system/istio"));
}

#[test]
fn a_provider_over_http_is_read_whole() {
    let text = "
extensionProviders:
- name: all
  envoyExtAuthzHttp:
    service: gate.auth.svc.cluster.local
    port: 80
    timeout: 1s
    failOpen: true
    statusOnError: '503'
    pathPrefix: /check
    includeRequestHeadersInCheck: [Cookie, 'X-Ext-*', '*-id', host]
    includeHeadersInCheck: [older]
    includeAdditionalHeadersInCheck: {X-From: mesh}
    includeRequestBodyInCheck: {maxRequestBytes: '16'}
    headersToUpstreamOnAllow: [authorization, x-user]
    headersToDownstreamOnDeny: [set-cookie, content-length]
    headersToDownstreamOnAllow: ['*']
- name: older
  envoyExtAuthzHttp: {service: gate.auth.svc.cluster.local, port: 80, includeHeadersInCheck: [older]}
";
    let (providers, warnings) = of(text);
    assert_eq!(warnings, Vec::<String>::new());
    let all = get(&providers, "all").unwrap();
    assert_eq!((all.timeout, all.fail_open, all.status_on_error), (Duration::from_secs(1), true, 503));
    assert_eq!(all.body, Some(CheckedBody { most: 16, partial: false, raw: false }));
    let names = |of: &[&str]| of.iter().map(|name| Name::from(*name)).collect::<Vec<_>>();
    let expected = HttpCheck {
        path_prefix: "/check".into(),
        request_headers: names(&["cookie", "x-ext-*", "*-id", "host"]),
        added: vec![("x-from".into(), "mesh".into())],
        to_upstream: names(&["authorization", "x-user"]),
        to_client_denied: names(&["set-cookie", "content-length"]),
        to_client_allowed: names(&["*"]),
    };
    assert_eq!(all.http.as_deref(), Some(&expected));
    let older = get(&providers, "older").unwrap();
    assert_eq!(older.http.as_ref().unwrap().request_headers, names(&["older"]));
}

#[test]
fn what_can_not_be_honoured_is_no_provider() {
    for (fields, why) in [
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: {}}", "needs maxRequestBytes"),
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: true}", "no mapping"),
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: {maxRequestBytes: 0}}", "maxRequestBytes is not"),
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: {maxRequestBytes: 16777217}}", "from 1 to 16777216"),
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: {maxRequestBytes: 1, packAsBytes: 1}}", "packAsBytes"),
        ("{service: opa.a, port: 1, includeRequestBodyInCheck: {maxRequestBytes: 1, new: 1}}", "InCheck.new: this"),
        ("{service: opa.auth.svc.cluster.local, port: 1, newer: 1}", "does not know this field"),
        ("{service: opa.auth.svc.cluster.local}", "needs service and port"),
        ("{port: 1}", "needs service and port"),
        ("{service: opa, port: 1}", "whole host name"),
        ("{service: '*.local', port: 1}", "whole host name"),
        ("{service: opa.a, port: 0}", "port number"),
        ("{service: opa.a, port: 70000}", "port number"),
        ("{service: opa.a, port: 1, timeout: 5}", "a duration"),
        ("{service: opa.a, port: 1, timeout: 0s}", "a duration"),
        ("{service: opa.a, port: 1, failOpen: 'yes'}", "true or false"),
        ("{service: opa.a, port: 1, statusOnError: '99'}", "HTTP status"),
        ("[]", "no mapping"),
    ] {
        let (providers, warnings) = of(&format!("extensionProviders:\n- name: x\n  envoyExtAuthzGrpc: {fields}\n"));
        let error = get(&providers, "x").unwrap_err();
        assert!(error.contains(why) && warnings.len() == 1 && warnings[0].contains(why), "{error} {warnings:?}");
    }
    for (field, why) in [
        ("pathPrefix: check", "pathPrefix is not a path"),
        ("pathPrefix: '/check?a='", "pathPrefix is not a path"),
        ("pathPrefix: /check/", "pathPrefix is not a path"),
        ("pathPrefix: /a/../b", "pathPrefix is not a path"),
        ("pathPrefix: /%2e%2e", "pathPrefix is not a path"),
        ("pathPrefix: 5", "pathPrefix is no text"),
        ("includeRequestHeadersInCheck: [x-*-y]", "includeRequestHeadersInCheck: \"x-*-y\" is no header's name"),
        ("includeRequestHeadersInCheck: [5]", "no header's name"),
        ("includeRequestHeadersInCheck: x", "no list"),
        ("includeRequestHeadersInCheck: [Connection]", "connection belongs to one connection"),
        ("headersToUpstreamOnAllow: [host]", "headersToUpstreamOnAllow: host belongs to one connection or message"),
        ("headersToDownstreamOnAllow: [Transfer-Encoding]", "transfer-encoding belongs"),
        ("headersToDownstreamOnDeny: [upgrade]", "upgrade belongs"),
        ("includeAdditionalHeadersInCheck: {host: a}", "\"host\" is no header that can be added"),
        ("includeAdditionalHeadersInCheck: {x-leno-authorizer-depth: '0'}", "is no header that can be added"),
        ("includeAdditionalHeadersInCheck: {x: '%REQ(y)%'}", "includeAdditionalHeadersInCheck.x is not a fixed text"),
        ("includeAdditionalHeadersInCheck: {x: 5}", "not a fixed text"),
        ("includeRequestBodyInCheck: {}", "needs maxRequestBytes"),
        ("newer: 1", "envoyExtAuthzHttp.newer: this version"),
        ("failOpen: 1", "envoyExtAuthzHttp.failOpen is not"),
    ] {
        let http = format!("extensionProviders:\n- name: x\n  envoyExtAuthzHttp: {{service: a.b, port: 1, {field}}}\n");
        let (providers, warnings) = of(&http);
        let error = get(&providers, "x").unwrap_err();
        assert!(error.contains(why) && warnings[0].contains(why), "{error} {warnings:?}");
    }
    let grpc = of("extensionProviders:\n- name: x\n  envoyExtAuthzGrpc: {service: a.b, port: 1, pathPrefix: /a}\n").0;
    assert!(get(&grpc, "x").unwrap_err().contains("pathPrefix: this version"), "it is for HTTP");
    let good = "{service: opa.a, port: 1}";
    let twice = format!(
        "extensionProviders:\n- {{name: x, envoyExtAuthzGrpc: {good}}}\n- {{name: x, envoyExtAuthzGrpc: {good}}}\n"
    );
    assert!(get(&of(&twice).0, "x").unwrap_err().contains("two providers"));
    for (text, why) in [
        ("extensionProviders: [", "no YAML"),
        ("- 1", "no mapping"),
        ("a word", "no mapping"),
        ("extensionProviders: 5", "no list"),
        ("extensionProviders: [{}]", "no name"),
    ] {
        let (providers, warnings) = of(text);
        assert!(get(&providers, "x").unwrap_err().contains("can't be read"), "{text}");
        assert!(warnings[0].contains(why), "{warnings:?}");
    }
    let (_, warnings) = of("trustDomain: td\nextensionProviders: []\n");
    assert!(warnings[0].contains("not in force: trustDomain"), "{warnings:?}");
}

#[test]
fn the_last_configuration_that_can_be_read_stays() {
    let good = of(GOOD).0;
    let (kept, warnings) = after(&good, "extensionProviders: [");
    assert!(warnings[0].contains("the providers of the last good version stay"), "{warnings:?}");
    assert_eq!(get(&kept, "all"), get(&good, "all"));
    let outdated = kept.outdated(&Options::default()).unwrap();
    assert!(outdated.contains("ConfigMap istio-system/istio (mesh) can't be read: no YAML"), "{outdated}");
    assert!(get(&kept, "new").unwrap_err().contains("can't be read"), "the new one may have it");
    // A mistake after a mistake changes nothing, and one that can be read counts again.
    let (kept, _) = after(&kept, "5");
    assert_eq!(get(&kept, "least"), get(&good, "least"));
    let (empty, warnings) = after(&kept, "extensionProviders: []");
    assert_eq!((warnings, empty.outdated(&Options::default())), (Vec::new(), None));
    assert!(get(&empty, "all").unwrap_err().contains("has no provider \"all\""));
}
