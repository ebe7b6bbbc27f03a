use super::*;

fn service(name: &str) -> model::ServiceName {
    model::ServiceName { namespace: "shop".into(), hostname: format!("{name}.shop.svc.cluster.local").into() }
}

fn policy() -> http::Policy {
    let header = http::Attribute::Header("x-role".into());
    let claim = http::Attribute::Claim(vec!["realm".into(), "roles".into()]);
    let plain = [
        http::Attribute::Principal,
        http::Attribute::Namespace,
        http::Attribute::ServiceAccount,
        http::Attribute::SourceIp,
        http::Attribute::RemoteIp,
        http::Attribute::DestinationIp,
        http::Attribute::DestinationPort,
        http::Attribute::Host,
        http::Attribute::Method,
        http::Attribute::Path,
        http::Attribute::Sni,
        http::Attribute::RequestPrincipal,
        http::Attribute::Audience,
        http::Attribute::Presenter,
        header,
        claim,
    ];
    let test = |attribute| http::AttributeTest { attribute, values: vec!["a*".into()], not_values: vec!["b".into()] };
    let clause = http::PolicyClause { alternatives: vec![plain.into_iter().map(test).collect(), Vec::new()] };
    http::Policy {
        id: model::PolicyName { namespace: "shop".into(), name: "rule".into() },
        action: http::PolicyAction::Audit,
        targets: vec![http::PolicyTarget::Service(service("web")), http::PolicyTarget::Waypoint(service("waypoint"))],
        rules: vec![http::PolicyRule { clauses: vec![clause] }, http::PolicyRule::default()],
        dry_run: true,
        tokens: Vec::new(),
        authorizer: None,
        denied_because: Some("nobody to ask".into()),
        not_understood: Some("why".into()),
    }
}

#[test]
fn what_is_written_is_read() {
    for action in [http::PolicyAction::Allow, http::PolicyAction::Deny, http::PolicyAction::Audit] {
        let policy = http::Policy { action, ..policy() };
        assert_eq!(request_policy_from_proto(request_policy_to_proto(&policy)).unwrap(), policy);
    }
}

#[test]
fn an_authoriser_is_read_as_written() {
    let authorizer = http::Authorizer {
        provider: "opa".into(),
        namespace: "".into(),
        hostname: "opa.shop.svc.cluster.local".into(),
        port: 9191,
        timeout: Duration::from_millis(250),
        fail_open: true,
        status_on_error: 503,
        body: None,
        http: None,
    };
    let custom = http::Policy { action: http::PolicyAction::Custom, authorizer: Some(authorizer.into()), ..policy() };
    assert_eq!(request_policy_from_proto(request_policy_to_proto(&custom)).unwrap(), custom);
    let changes: [fn(&mut wire::Authorizer); 4] = [
        |it| it.hostname.clear(),
        |it| it.port = 70_000,
        |it| it.status_on_error = 0,
        |it| it.status_on_error = 65_936,
    ];
    for change in changes {
        let mut message = request_policy_to_proto(&custom);
        change(message.authorizer.as_mut().unwrap());
        assert!(request_policy_from_proto(message.clone()).is_err(), "{message:?}");
    }
}

#[test]
fn an_authoriser_that_is_told_of_bodies_is_nobody_for_a_version_that_tells_nothing_of_them() {
    let authorizer = http::Authorizer {
        provider: "opa".into(),
        namespace: "".into(),
        hostname: "opa.shop.svc.cluster.local".into(),
        port: 9191,
        timeout: Duration::from_millis(250),
        fail_open: true,
        status_on_error: 503,
        body: Some(http::CheckedBody { most: 8192, partial: true, raw: true }),
        http: None,
    };
    let custom = http::Policy { action: http::PolicyAction::Custom, authorizer: Some(authorizer.into()), ..policy() };
    let mut message = request_policy_to_proto(&custom);
    assert!(message.authorizer.is_none(), "that version would ask half of the question");
    assert_eq!(request_policy_from_proto(message.clone()).unwrap(), custom);
    message.newer_authorizer.as_mut().unwrap().body.as_mut().unwrap().max_bytes = 0;
    assert!(request_policy_from_proto(message).is_err());
}

#[test]
fn an_authoriser_over_http_is_read_as_written_and_nobody_for_a_version_before() {
    let authorizer = http::Authorizer {
        provider: "gate".into(),
        namespace: "shop".into(),
        hostname: "gate.shop.svc.cluster.local".into(),
        port: 80,
        timeout: Duration::from_millis(250),
        fail_open: false,
        status_on_error: 403,
        body: None,
        http: Some(Box::new(http::HttpCheck {
            path_prefix: "/check".into(),
            request_headers: vec!["cookie".into()],
            added: vec![("x-from".into(), "mesh".into())],
            to_upstream: vec!["x-user*".into()],
            to_client_denied: vec!["*-why".into()],
            to_client_allowed: vec!["set-cookie".into()],
        })),
    };
    let custom = http::Policy { action: http::PolicyAction::Custom, authorizer: Some(authorizer.into()), ..policy() };
    let message = request_policy_to_proto(&custom);
    assert!(message.authorizer.is_none(), "that version would speak gRPC");
    assert_eq!(request_policy_from_proto(message).unwrap(), custom);
}

#[test]
fn one_unknown_part_refuses_the_policy() {
    let changes: [fn(&mut wire::AuthorizationPolicy); 5] = [
        |it| it.action = 77,
        |it| it.action = 0,
        |it| it.name.clear(),
        |it| it.targets[0].target = None,
        |it| it.rules[0].clauses[0].alternatives[0].tests[0].attribute = 77,
    ];
    for change in changes {
        let mut message = request_policy_to_proto(&policy());
        change(&mut message);
        assert!(request_policy_from_proto(message).is_err());
    }
}

#[test]
fn a_stand_in_closes_what_can_be_read_or_everything() {
    let message = request_policy_to_proto(&policy());
    let stand_in = request_policy_stand_in("shop/rule", Some(message.clone()), "new").expect("a name");
    assert_eq!(stand_in.targets, policy().targets);
    assert!(stand_in.dry_run && stand_in.not_understood.is_some());
    let mut strange = message;
    strange.targets[1].target = None;
    for message in [None, Some(strange), Some(wire::AuthorizationPolicy::default())] {
        let stand_in = request_policy_stand_in("shop/rule", message, "new").expect("a name");
        assert_eq!(stand_in.targets, [http::PolicyTarget::All]);
    }
    assert!(request_policy_stand_in("nameless", None, "new").is_none());
}
