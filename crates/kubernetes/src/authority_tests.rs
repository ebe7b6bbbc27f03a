use leno_telemetry::Readiness;
use leno_testkit::api_server::ApiServer;

use super::*;

const NAMESPACE: &str = "leno-system";

async fn open(server: &ApiServer) -> Result<ClusterAuthority, AuthorityError> {
    let client = Client::anonymous(&server.url()).expect("a URL");
    let ready = Readiness::default().task("authority");
    ClusterAuthority::open(client, NAMESPACE, "cluster.local", CaOptions::default(), ready).await
}

fn held(server: &ApiServer, name: &str) -> Option<Files> {
    server.get("v1", "secrets", NAMESPACE, name).as_ref().map(data)
}

fn secret(name: &str, files: &Files) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE}, "data": encoded(files),
    })
}

/// The files of an authority of somebody else's, as Istio has them.
fn others() -> Files {
    let files = AuthorityFiles::new("others", Files::new());
    CertificateAuthority::open_elsewhere(files.clone(), "cluster.local", CaOptions::default()).expect("made");
    let mut files = files.contents();
    files.retain(|name, _| ["ca-cert.pem", "ca-key.pem", "root-cert.pem", "cert-chain.pem"].contains(&name.as_str()));
    files
}

/// Runs `kept` until `wanted` holds.
async fn until(kept: &ClusterAuthority, leads: bool, wanted: impl Fn() -> bool) {
    let leads = watch::Sender::new(leads);
    let wait = async {
        while !wanted() {
            sleep(Duration::from_millis(20)).await;
            // As `roots::follow` does.
            let _ = kept.authority().reload();
        }
    };
    let run = async {
        tokio::select! {
            () = kept.run(leads.subscribe()) => {}
            () = wait => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("it comes to that");
}

#[tokio::test]
async fn replicas_that_start_together_have_one_root() {
    let server = ApiServer::start().await;
    let (a, b, c) = tokio::join!(open(&server), open(&server), open(&server));
    let all = [a.expect("opened"), b.expect("opened"), c.expect("opened")];
    let root = all[0].authority().root_pem();
    assert!(all.iter().all(|kept| kept.authority().root_pem() == root));
    let files = held(&server, SECRET).expect("made");
    assert_eq!(files["root-cert.pem"], root);
    // And the next one, too.
    assert_eq!(open(&server).await.expect("opened").authority().root_pem(), root);
}

#[tokio::test]
async fn the_roots_are_published_and_put_back() {
    let server = ApiServer::start().await;
    let kept = open(&server).await.expect("opened");
    let root = kept.authority().root_pem();
    let published = || {
        let map = server.get("v1", "configmaps", NAMESPACE, ROOTS)?;
        map["data"][ROOTS_KEY].as_str().map(str::to_owned)
    };
    until(&kept, true, || published().as_ref() == Some(&root)).await;
    let mut map = server.get("v1", "configmaps", NAMESPACE, ROOTS).expect("there");
    map["data"][ROOTS_KEY] = "none".into();
    server.put(&map);
    until(&kept, true, || published().as_ref() == Some(&root)).await;
    // Who does not lead leaves it alone.
    server.put(&map);
    let other = open(&server).await.expect("opened");
    server.requests();
    let watched = async { server.requested("configmaps?watch=1").await };
    let leads = watch::Sender::new(false);
    tokio::select! {
        () = other.run(leads.subscribe()) => {}
        () = watched => {}
    }
    assert_eq!(published().as_deref(), Some("none"));
}

#[tokio::test]
async fn a_new_intermediate_is_every_replicas() {
    let server = ApiServer::start().await;
    let (a, b) = (open(&server).await.expect("opened"), open(&server).await.expect("opened"));
    let before = held(&server, SECRET).expect("made");
    a.authority().rotate_intermediate().expect("it has its root");
    let changed = || held(&server, SECRET).is_some_and(|files| files["ca-cert.pem"] != before["ca-cert.pem"]);
    until(&a, true, changed).await;
    let now = held(&server, SECRET).expect("there");
    assert_eq!(now["root-cert.pem"], before["root-cert.pem"]);
    // Each replica dates what it writes itself.
    let undated = |mut files: Files| {
        files.retain(|name, _| !name.ends_with(".written"));
        files
    };
    until(&b, false, || undated(b.files.contents()) == undated(now.clone())).await;
}

#[tokio::test]
async fn users_bring_their_own_and_replace_it_without_a_restart() {
    let server = ApiServer::start().await;
    let first = others();
    server.put(&secret(USERS_SECRET, &first));
    let kept = open(&server).await.expect("opened");
    assert_eq!(kept.authority().root_pem(), first["root-cert.pem"]);
    let own = held(&server, SECRET).expect("made");
    assert!(!own.contains_key("ca-key.pem") && !own.contains_key("root-cert.pem"), "{:?}", own.keys());
    // Another root is trusted beside the first one, which goes on signing.
    let second = others();
    server.put(&secret(USERS_SECRET, &second));
    until(&kept, true, || kept.authority().root_pem().contains(&second["root-cert.pem"])).await;
    assert!(kept.authority().root_pem().starts_with(&first["root-cert.pem"]));
    assert!(kept.authority().announces_a_root());
    // A control plane that starts now knows that the first one is still trusted, and still signs with it.
    until(&kept, true, || {
        held(&server, SECRET).is_some_and(|own| {
            own.get("trusted-roots.pem").is_some_and(|roots| roots.contains(&second["root-cert.pem"]))
        })
    })
    .await;
    let later = open(&server).await.expect("opened");
    assert!(later.authority().root_pem().starts_with(&first["root-cert.pem"]));
    assert!(later.authority().root_pem().contains(&second["root-cert.pem"]));
    // A Secret that is gone ends nothing.
    server.delete("v1", "secrets", NAMESPACE, USERS_SECRET);
    server.requests();
    until(&kept, true, || server.requests().iter().any(|request| request.contains("name%3Dcacerts"))).await;
    assert!(kept.authority().root_pem().contains(&second["root-cert.pem"]));
}

#[tokio::test]
async fn cert_managers_names_are_understood_and_gaps_are_named() {
    let server = ApiServer::start().await;
    let files = others();
    let renamed: Files = [("tls.crt", "cert-chain.pem"), ("tls.key", "ca-key.pem"), ("ca.crt", "root-cert.pem")]
        .into_iter()
        .map(|(to, from)| (to.to_owned(), files[from].clone()))
        .collect();
    server.put(&secret(USERS_SECRET, &renamed));
    let kept = open(&server).await.expect("opened");
    assert_eq!(kept.authority().root_pem(), files["root-cert.pem"]);
    let mut incomplete = renamed;
    incomplete.remove("tls.key");
    server.put(&secret(USERS_SECRET, &incomplete));
    let error = open(&server).await.expect_err("no key").to_string();
    assert!(error.contains("cacerts has no ca-key.pem"), "{error}");
}
