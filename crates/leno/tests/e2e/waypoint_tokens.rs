//! Tokens of end users (JSON Web Tokens) on a stage: signed with openssl, sent with curl, by keys that nginx serves in the mesh.

use std::process::Command;

use serde_json::Value;

use crate::shop::SHOP;
use crate::stage::{Ran, Stage, eventually, run, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: issuer, namespace: shop}
spec: {selector: {app: issuer}, ports: [{name: http, port: 80, targetPort: 8080}, {name: dead, port: 81, targetPort: 8999}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http {
        access_log off;
        server { listen 8080; location / { return 200 "$request_uri user=$http_x_user token=$http_authorization$http_x_token\n"; } }
      }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

/// Serves what lies in the directory `KEYS`.
const ISSUER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: issuer, namespace: shop, labels: {app: issuer}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http { access_log off; server { listen 8080; root KEYS; } }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
"#;

/// Two issuers: one serves its keys, the keys of the other stand in the object. No program serves those of a third one.
const POLICIES: &str = r#"
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  jwtRules:
  - issuer: https://served.example
    audiences: [web]
    jwksUri: http://issuer.shop/keys.json
    outputClaimToHeaders: [{header: x-user, claim: sub}]
  - issuer: https://inline.example
    jwks: 'INLINE'
    fromHeaders: [{name: x-token, prefix: 'Token '}]
    fromCookies: [session]
    forwardOriginalToken: true
  - issuer: https://dead.example
    jwksUri: http://issuer.shop.svc.cluster.local:81/keys.json
    timeout: 2s
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: known, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  rules:
  - to: [{operation: {paths: ['/open']}}]
  - from: [{source: {requestPrincipals: ['https://served.example/ann', 'https://inline.example/*']}}]
  - from: [{source: {requestPrincipals: ['https://served.example/*']}}]
    when: [{key: 'request.auth.claims[realm][roles]', values: [admin]}]
"#;

/// Keys and tokens, in JSON. Only openssl knows the keys.
const MAKE: &str = r#"
import base64, json, subprocess, sys, tempfile, time
directory = tempfile.mkdtemp()
def openssl(*words, **more): return subprocess.run(["openssl", *words], check=True, capture_output=True, **more).stdout
def text(data): return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
def part(value): return text(json.dumps(value).encode())
class Rsa:
    alg = "RS256"
    def __init__(self, kid):
        self.kid, self.file = kid, f"{directory}/{kid}"
        openssl("genrsa", "-out", self.file, "2048")
    def jwk(self):
        modulus = openssl("rsa", "-in", self.file, "-noout", "-modulus").decode().strip().split("=")[1]
        return {"kty": "RSA", "kid": self.kid, "use": "sig", "alg": self.alg, "n": text(bytes.fromhex(modulus)), "e": "AQAB"}
    def sign(self, said): return openssl("dgst", "-sha256", "-sign", self.file, input=said)
class Elliptic:
    alg = "ES256"
    def __init__(self, kid):
        self.kid, self.file = kid, f"{directory}/{kid}"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.file)
    def jwk(self):
        point = openssl("ec", "-in", self.file, "-pubout", "-outform", "DER")[-64:]
        return {"kty": "EC", "crv": "P-256", "kid": self.kid, "x": text(point[:32]), "y": text(point[32:])}
    def sign(self, said):
        der = openssl("dgst", "-sha256", "-sign", self.file, input=said)
        first = der[4:4 + der[3]]
        second = der[6 + der[3]:]
        return b"".join(number.lstrip(b"\0").rjust(32, b"\0") for number in (first, second))
def token(key, iss, sub="ann", alg=None, life=600, **more):
    now = int(time.time())
    said = part({"alg": alg or key.alg, "kid": key.kid, "typ": "JWT"}) + "." + part({"iss": iss, "sub": sub, "iat": now + min(life, 0), "exp": now + life, **more})
    return said + "." + text(key.sign(said.encode()))
one, two, inline = Rsa("one"), Elliptic("two"), Elliptic("three")
served = "https://served.example"
good = token(one, served, aud="web")
head, body, signature = good.split(".")
print(json.dumps({
    "first": {"keys": [one.jwk()]}, "both": {"keys": [one.jwk(), two.jwk()]}, "inline": {"keys": [inline.jwk()]},
    "good": good, "bob": token(one, served, "bob", aud="web"),
    "admin": token(one, served, "bob", aud=["web", "mail"], realm={"roles": ["admin", "dev"]}),
    "rotated": token(two, served, aud="web"), "inline token": token(inline, "https://inline.example", "ida"),
    "dead": token(one, "https://dead.example"),
    "expired": token(one, served, aud="web", life=-3600),
    "early": token(one, served, aud="web", nbf=int(time.time()) + 3600),
    "other issuer": token(one, "https://other.example", aud="web"),
    "other audience": token(one, served, aud="mail"),
    "other key": token(inline, served, aud="web"),
    "tampered": ".".join([head, part({"iss": served, "sub": "ann", "aud": "web", "exp": int(time.time()) + 600, "admin": True}), signature]),
    "unsigned": ".".join([part({"alg": "none"}), body, ""]),
}))
"#;

fn curl(stage: &Stage, what: &str) -> Ran {
    stage.sh("shop/client", &format!("curl -sS -m 20 -w '%{{http_code}}' {what}"))
}

#[test]
fn tokens_that_openssl_has_signed_are_checked_at_a_waypoint() {
    let programs = ["nginx", "curl", "openssl", "/usr/bin/python3"];
    if skip("tokens_that_openssl_has_signed_are_checked_at_a_waypoint", &programs) {
        return;
    }
    let made = run(Command::new("/usr/bin/python3").args(["-c", MAKE])).ok().stdout;
    let made: Value = serde_json::from_str(&made).unwrap();
    let token = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("no token {name}")).to_owned();
    let keys = tempfile::tempdir().unwrap();
    let serve = |name: &str| {
        let draft = keys.path().join("draft");
        std::fs::write(&draft, made[name].to_string()).unwrap();
        std::fs::rename(draft, keys.path().join("keys.json")).unwrap();
    };
    serve("first");
    let issuer = ISSUER.replace("KEYS", keys.path().to_str().unwrap());
    let policies = POLICIES.replace("INLINE", &made["inline"].to_string());
    let files = [("shop.yaml", SHOP), ("mesh.yaml", MESH), ("issuer.yaml", &issuer), ("policies.yaml", &policies)];
    let stage = Stage::up(&files, &["--nodes", "2"]);
    let ask = |name: &str, path: &str| {
        let ran = curl(&stage, &format!("-H 'authorization: Bearer {}' http://web{path}", token(name)));
        ran.ok().stdout
    };
    let expect = |name: &str, path: &str, ending: &str| {
        let said = ask(name, path);
        assert!(said.ends_with(ending), "{name} {path}: {said}");
    };

    // Whose token it is decides, and the program is told; what the client says of that is not.
    expect("good", "/a", "/a user=ann token=\n200");
    expect("bob", "/a", "403");
    expect("bob", "/open", "/open user=bob token=\n200");
    expect("admin", "/a", "/a user=bob token=\n200");
    let forged = |path: &str| curl(&stage, &format!("-H 'x-user: ann' http://web{path}")).ok().stdout;
    assert!(forged("/a").ends_with("403"));
    assert_eq!(forged("/open"), "/open user= token=\n200");
    let in_query = curl(&stage, &format!("'http://web/a?x=1&access_token={}'", token("good"))).ok().stdout;
    assert_eq!(in_query, "/a?x=1 user=ann token=\n200");

    // Asked before, what hangs on a token is said to.
    let explained = |name: &str| {
        let header = format!("authorization=Bearer {}", token(name));
        let asked = ["shop/client", "shop/web:80", "--path", "/a", "--header", &header];
        run(stage.command("explain").args(asked)).ok().stdout
    };
    let said = explained("good");
    let depends =
        "with an accepted token of issuer https://served.example allowed by rule 2 of policy shop/known; else";
    assert!(said.contains(depends) && !said.contains("403"), "{said}");
    assert!(explained("bob").contains("policies: not allowed"), "whatever the waypoint says of the token");
    assert!(explained("other audience").contains("refused with status 401: the token is for other audiences"));

    // The keys of another issuer, whose tokens come elsewhere.
    let inline = token("inline token");
    for how in [format!("-H 'x-token: Token {inline}'"), format!("-b 'a=b; session={inline}'")] {
        let said = curl(&stage, &format!("{how} http://web/a")).ok().stdout;
        assert!(said.starts_with("/a user= token=") && said.ends_with("\n200"), "{how}: {said}");
        assert_eq!(how.starts_with("-H"), said.contains(&inline), "it is passed on as it came: {said}");
    }

    for name in ["expired", "early", "other issuer", "other audience", "other key", "tampered", "unsigned", "rotated"] {
        for path in ["/a", "/open"] {
            expect(name, path, "401");
        }
    }
    let head = curl(&stage, &format!("-i -H 'authorization: Bearer {}' http://web/", token("expired"))).ok().stdout;
    assert!(head.contains("www-authenticate: Bearer error=\"invalid_token\""), "{head}");
    // Where nobody serves the keys, the tokens of that issuer are refused, and nobody else's.
    expect("dead", "/a", "401");
    expect("dead", "/open", "401");
    expect("good", "/a", "200");

    // A new key is found when the first token of it comes.
    serve("both");
    eventually("the token of a new key", || {
        let said = ask("rotated", "/a");
        if said.ends_with("/a user=ann token=\n200") { Ok(()) } else { Err(said) }
    });
    // What is known holds while the server is away.
    stage.remove("issuer.yaml");
    stage.wait("the issuer is gone", |ps| {
        ps["pods"].as_array()?.iter().all(|pod| pod["name"] != "issuer").then_some(())
    });
    expect("good", "/a", "200");
    expect("rotated", "/a", "200");
    expect("other key", "/a", "401");

    let whys = ["the token ended", "http://issuer.shop.svc.cluster.local:81/keys.json", "by none of the issuer's keys"];
    let log = stage.told(&["logs", "shop/gate"], |log| whys.iter().all(|why| log.contains(why)));
    assert!(!log.contains("eyJ"), "no token is in the log: {log}");
}
