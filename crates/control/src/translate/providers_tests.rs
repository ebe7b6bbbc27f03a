#![allow(clippy::unwrap_used, reason = "test code")]

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
    assert!(get(&providers, "other").unwrap_err().contains("has no provider \"other\""));
    let without = Providers::of(&Options::default(), &ObjectStore::default(), &providers).0;
    assert!(get(&without, "all").unwrap_err().contains("there is no ConfigMap istio-system/istio"));
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
    let http = of("extensionProviders:\n- name: x\n  envoyExtAuthzHttp: {service: a.b, port: 1}\n").0;
    assert!(get(&http, "x").unwrap_err().contains("not spoken by Leno"));
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
