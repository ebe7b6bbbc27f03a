use leno_model::PolicyName;
use leno_model::http::{Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule};

use super::*;

#[test]
fn a_refusal_tells_the_name_where_a_policy_is_about_names() {
    let guard = |attribute: Attribute| {
        let test = AttributeTest { attribute, values: vec!["*".into()], not_values: Vec::new() };
        let rules = vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] }];
        let id = PolicyName { namespace: "shop".into(), name: "p".into() };
        Guard::new(&[Policy { rules, ..Policy::new(id, PolicyAction::Allow) }])
    };
    let source_ip = [10, 0, 0, 9].into();
    let connection = Connection { source: None, source_ip, destination: ([10, 96, 0, 1], 443).into() };
    for (known, name, words) in [
        (ServerName::Unknown, None, ", and the server name that the client asks for is not known"),
        (ServerName::Known(None), None, ", and the client asks for no server name"),
        (ServerName::Known(Some("a.example".into())), Some("a.example"), ""),
    ] {
        assert_eq!(known.name(), name);
        let by_name = guard(Attribute::Sni);
        match by_name.judge(&known.subject(connection)).verdict {
            Ok(_) => assert_eq!(words, "", "only a name that is known passes"),
            Err(denied) => assert!(known.denied(denied, &by_name).to_string().ends_with(words), "{words}"),
        }
        let by_caller = guard(Attribute::Principal);
        let denied = by_caller.judge(&known.subject(connection)).verdict.expect_err("nobody's");
        assert!(!known.denied(denied, &by_caller).to_string().contains("server name"));
    }
}
