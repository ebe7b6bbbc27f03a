//! Tokens of requests (JSON Web Tokens), made by another program, pass or are refused.

use leno_model::http::{
    Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule, PolicyTarget, TokenKeys, TokenRule,
};
use leno_model::{AppProtocol, PolicyName, Service};
use leno_testkit::tokens::{Tokens, tokens};
use tokio::io::AsyncReadExt;

use crate::http1::mirror;
use crate::support::{Mesh, raw, soon};
use crate::websockets::{echo, lives, open_with};

pub(crate) fn rule(tokens: &Tokens) -> TokenRule {
    TokenRule {
        issuer: (*tokens.issuer).into(),
        audiences: vec!["web".into()],
        keys: TokenKeys::Inline(tokens.jwks.to_string().into()),
        headers: Vec::new(),
        params: Vec::new(),
        cookies: Vec::new(),
        forward: false,
        payload_header: None,
        claim_headers: vec![("x-user".into(), vec!["sub".into()])],
    }
}

fn policy(of: &Service, name: &str, action: PolicyAction, tokens: Vec<TokenRule>, rules: Vec<PolicyRule>) -> Policy {
    Policy {
        targets: vec![PolicyTarget::Service(of.id.clone())],
        rules,
        tokens,
        ..Policy::new(PolicyName { namespace: "default".into(), name: name.into() }, action)
    }
}

/// A service whose requests may carry tokens by these rules.
pub(crate) async fn guarded(rules: Vec<TokenRule>) -> (Mesh, Service) {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let authentication = policy(&web, "request_authentication_p", PolicyAction::Authenticate, rules, Vec::new());
    mesh.control.publish_request_policy(&authentication);
    mesh.control.synced(1).await;
    (mesh, web)
}

pub(crate) async fn ask(mesh: &Mesh, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n");
    raw(mesh.bridged().await, request.as_bytes()).await
}

pub(crate) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_good_token_passes_and_no_bad_one() {
    let tokens = tokens();
    let (mesh, _) = guarded(vec![rule(&tokens)]).await;
    let answer = ask(&mesh, "/", "x-user: root\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("x-user"), "who has none is nobody: {answer}");
    for (name, token) in &tokens.by_alg {
        let answer = ask(&mesh, "/", &format!("{}x-user: root\r\n", bearer(token))).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nx-user=ann\n"), "{name}: {answer}");
        assert!(!answer.contains("authorization") && !answer.contains("root"), "{name}: {answer}");
        let answer = ask(&mesh, &format!("/?a=b&access_token={token}"), "").await;
        assert!(answer.contains("GET /?a=b HTTP/1.1\n"), "{name}: {answer}");
        mesh.log.line(&["path=\"/\"", "response_code=200"]).await;
    }
    for (name, token) in &tokens.bad {
        let answer = ask(&mesh, "/", &bearer(token)).await;
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{name}: {answer}");
        assert!(answer.contains("www-authenticate: Bearer error=\"invalid_token\"\r\n"), "{name}: {answer}");
        for good_first in [true, false] {
            let (good, bad) = (bearer(&tokens.by_alg["ES256"]), bearer(token));
            let both = if good_first { format!("{good}{bad}") } else { format!("{bad}{good}") };
            let answer = ask(&mesh, "/", &both).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "beside a good one, {name}: {answer}");
        }
    }
    for (name, passes) in
        [("bob", true), ("other audience", false), ("two audiences", true), ("no subject", true), ("no end", true)]
    {
        let answer = ask(&mesh, "/", &bearer(&tokens.of_claims[name])).await;
        assert_eq!(answer.starts_with("HTTP/1.1 200 "), passes, "{name}: {answer}");
    }
    let line = mesh.log.line(&["response_code=401", "the token ended"]).await;
    assert!(line.contains("response_flags=\"DENY\"") && !line.contains("eyJ"), "{line}");
    assert!(!mesh.log.all().iter().any(|line| line.contains("eyJ")), "no token is in the log");
    let grpc = ask(&mesh, "/a.B/C", &format!("content-type: application/grpc\r\n{}", bearer("x"))).await;
    assert!(grpc.contains("grpc-status: 16\r\n"), "{grpc}");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_ask_whose_token_it_is() {
    let tokens = tokens();
    let (mesh, web) = guarded(vec![rule(&tokens)]).await;
    let asks = |attribute: Attribute, value: &str| AttributeTest {
        attribute,
        values: vec![value.into()],
        not_values: Vec::new(),
    };
    let admin = asks(Attribute::Claim(vec!["realm".into(), "roles".into()]), "admin");
    let ann = asks(Attribute::RequestPrincipal, "https://issuer.example/ann");
    let rule = PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![admin, ann]] }] };
    mesh.control.publish_request_policy(&policy(&web, "admins", PolicyAction::Allow, Vec::new(), vec![rule]));
    mesh.control.synced(1).await;
    for (name, status) in [("roles", "200"), ("bob", "403"), ("two audiences", "403"), ("other audience", "401")] {
        // Whom the claims are of is the issuer's to say, not a header's.
        let answer = ask(&mesh, "/", &format!("{}x-user: ann\r\n", bearer(&tokens.of_claims[name]))).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {answer}");
    }
    assert!(ask(&mesh, "/", "").await.starts_with("HTTP/1.1 403 "), "who has no token is nobody");
}

/// A policy that lets in whose token is of this subject.
fn only(of: &Service, attribute: Attribute, value: &str) -> Policy {
    let test = AttributeTest { attribute, values: vec![value.into()], not_values: Vec::new() };
    let rule = PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] };
    policy(of, "only", PolicyAction::Allow, Vec::new(), vec![rule])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_fills_is_never_the_clients() {
    let tokens = tokens();
    let (mesh, web) = guarded(vec![rule(&tokens)]).await;
    mesh.control.publish_request_policy(&only(&web, Attribute::Header("x-user".into()), "ann"));
    mesh.control.synced(1).await;
    for (token, status) in [(None, "403"), (Some("bob"), "403"), (Some("roles"), "200")] {
        let token = token.map(|name| bearer(&tokens.of_claims[name])).unwrap_or_default();
        let answer = ask(&mesh, "/", &format!("{token}x-user: ann\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_is_its_tokens_as_long_as_the_rules_are_the_same() {
    let tokens = tokens();
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[echo().await]).await;
    let authentication =
        |rules| policy(&web, "request_authentication_p", PolicyAction::Authenticate, rules, Vec::new());
    mesh.control.publish_request_policy(&authentication(vec![rule(&tokens)]));
    mesh.control.synced(1).await;
    let mut ann = open_with(&mesh, "/ann", &bearer(&tokens.by_alg["ES256"])).await;
    let mut bob = open_with(&mesh, "/bob", &bearer(&tokens.of_claims["bob"])).await;
    let mut nobody = open_with(&mesh, "/nobody", "").await;
    assert!(lives(&mut ann).await && lives(&mut bob).await && lives(&mut nobody).await);

    mesh.control.publish_request_policy(&only(&web, Attribute::RequestPrincipal, "https://issuer.example/ann"));
    mesh.control.synced(1).await;
    for (stream, path) in [(&mut bob, "path=\"/bob\""), (&mut nobody, "path=\"/nobody\"")] {
        let _ = soon("the end of what is refused now", stream.read_to_end(&mut Vec::new())).await;
        mesh.log.line(&[path, "response_flags=\"DENY\"", "policy"]).await;
    }
    assert!(lives(&mut ann).await, "whose token is let in goes on");

    // Other rules, by which the same token is still good, and then some by which it is not.
    mesh.control.publish_request_policy(&authentication(vec![TokenRule { forward: true, ..rule(&tokens) }]));
    mesh.control.synced(1).await;
    assert!(lives(&mut ann).await, "its token is still good");
    let keys = TokenKeys::Inline(tokens.rotated.to_string().into());
    mesh.control.publish_request_policy(&authentication(vec![TokenRule { keys, ..rule(&tokens) }]));
    mesh.control.synced(1).await;
    let _ = soon("the end of what has no good token now", ann.read_to_end(&mut Vec::new())).await;
    mesh.log.line(&["path=\"/ann\"", "response_flags=\"DENY\"", "by none of the issuer's keys"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_good_keys_no_token_passes_and_everybody_else_does() {
    let tokens = tokens();
    let good = bearer(&tokens.by_alg["ES256"]);
    for (keys, why) in [
        (TokenKeys::None, "names none for this issuer"),
        (TokenKeys::Inline(tokens.unusable.to_string().into()), "none of the key set's keys"),
        (TokenKeys::Inline("<html>".into()), "no JSON Web Key Set"),
        (TokenKeys::Inline(tokens.rotated.to_string().into()), "by none of the issuer's keys"),
        (at("http://issuer.example/keys"), "is no service of the mesh"),
        (at("ftp://issuer.example/keys"), "neither http nor https"),
        (at("https://127.0.0.1:1/keys"), "cannot connect"),
        (at("/keys"), "no scheme or no host"),
        (at("http://web.default.svc.cluster.local/keys"), "endpoint is not in the mesh"),
    ] {
        let (mesh, _) = guarded(vec![TokenRule { keys, ..rule(&tokens) }]).await;
        let answer = ask(&mesh, "/", &good).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{why}: {answer}");
        mesh.log.line(&["response_code=401", why]).await;
        assert!(ask(&mesh, "/", "").await.starts_with("HTTP/1.1 200 "), "{why}");
    }
}

fn at(uri: &str) -> TokenKeys {
    TokenKeys::At { uri: uri.into(), timeout: std::time::Duration::from_secs(5) }
}
