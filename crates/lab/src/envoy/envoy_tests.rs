use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use leno_tls::{CaOptions, CertificateAuthority, PrivateKey, WorkloadCertificate};
use serde_json::Value;

use super::*;

fn pod(uid: &str) -> config::Pod<'_> {
    config::Pod {
        uid,
        namespace: "/proc/1/fd/7".into(),
        chain: Path::new("/e/chain.pem"),
        key: Path::new("/e/key.pem"),
        root: Path::new("/e/root.pem"),
        peers: "spiffe://cluster.local/ns/lab/sa/",
    }
}

/// All values of a key, at any depth.
fn all<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(name));
            fields.values().for_each(|value| all(value, name, found));
        }
        Value::Array(items) => items.iter().for_each(|value| all(value, name, found)),
        _ => {}
    }
}

/// Every listener is in its pod's network namespace and leads to a cluster of the same pod.
#[test]
fn listeners_and_clusters_stay_within_their_pod() {
    let pod = pod("one");
    let clusters = Value::from(config::clusters(&pod).to_vec());
    let listeners = Value::from(config::listeners(&pod, Path::new("/e/log")).to_vec());
    let (mut named, mut known, mut places) = (Vec::new(), Vec::new(), Vec::new());
    all(&listeners, "cluster", &mut named);
    known.extend(clusters.as_array().unwrap().iter().map(|cluster| &cluster["name"]));
    assert_eq!((named.len(), &named), (2, &known));
    for side in [&clusters, &listeners] {
        all(side, "network_namespace_filepath", &mut places);
    }
    assert_eq!(places, vec!["/proc/1/fd/7"; 4]);
    let names: BTreeSet<_> = config::names("one").into_iter().chain(config::names("two")).collect();
    assert_eq!(names.len(), 4);
}

/// Weaker encryption would flatter Envoy in the benchmark.
#[test]
fn both_ends_prove_themselves_with_tls_1_3() {
    let pod = pod("one");
    let [tunnel, program] = config::clusters(&pod);
    let [_, inbound] = config::listeners(&pod, Path::new("/e/log"));
    assert_eq!(program.get("transport_socket"), None, "the program itself knows no TLS");
    let server = &inbound["filter_chains"][0]["transport_socket"]["typed_config"];
    assert_eq!(server["require_client_certificate"], true);
    for context in [server, &tunnel["transport_socket"]["typed_config"]] {
        let common = &context["common_tls_context"];
        assert_eq!(common["tls_params"]["tls_minimum_protocol_version"], "TLSv1_3");
        assert_eq!(common["validation_context"]["trusted_ca"]["filename"], "/e/root.pem");
        let peers = &common["validation_context"]["match_typed_subject_alt_names"][0];
        assert_eq!((&peers["san_type"], &peers["matcher"]["prefix"]), (&"URI".into(), &pod.peers.into()));
    }
}

/// The key file belongs to the certificate.
#[test]
fn keys_survive_being_written() {
    let authority = CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap();
    let identity = Identity::new("cluster.local", "lab", "client").unwrap();
    let (key, request) = certificate_request(&identity).unwrap();
    let text = private_key(key.secret_pkcs8_der().unwrap());
    assert!(text.lines().all(|line| line.len() <= 64), "{text}");
    let chain = authority.sign(&request, &identity, CERTIFICATE_TTL).unwrap();
    WorkloadCertificate::from_issued(identity, PrivateKey::from_pem(&text).unwrap(), &chain).unwrap();
}

#[test]
fn files_are_whole_and_private() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("key");
    for content in ["a longer one", "short"] {
        write(&path, content.as_bytes()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}
