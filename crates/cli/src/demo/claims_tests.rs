use super::*;

/// A demonstration in which everything went well.
fn good() -> Seen {
    let phase = |name: &'static str, hits, mtls| Phase {
        name: name.into(),
        requests: 100,
        plaintext_canary_hits: hits,
        link_packets: 1000,
        mtls_connections: mtls,
        snoop_succeeded: 10,
        ..Phase::default()
    };
    let mut deny = phase("deny", 0, 40);
    (deny.snoop_succeeded, deny.snoop_failed, deny.denied) = (0, 10, 10);
    let talk = |(source, destination): &(&str, &str)| Talk {
        edge: Edge { source: principal(source), destination: principal(destination), service: String::new() },
        connections: 10,
    };
    let processes = BTreeMap::from([("emojivoto/web".to_owned(), "4711".to_owned())]);
    Seen {
        phases: vec![phase("outside", 500, 0), phase("enroll", 20, 20), phase("mesh", 0, 40), deny],
        talks: CALLS.iter().map(talk).collect(),
        processes: (processes.clone(), processes),
        denial: Denial {
            explained: Some("denied by policy a/b".to_owned()),
            access_log: Some("error=\"denied by policy a/b\" src=…".to_owned()),
        },
        left_behind: Some(Vec::new()),
    }
}

fn broken(seen: &Seen) -> Vec<String> {
    check(seen).into_iter().filter(|claim| !claim.held).map(|claim| claim.claim.into_owned()).collect()
}

#[test]
fn all_claims_hold_when_all_went_well() {
    assert_eq!(broken(&good()), [""; 0]);
    assert_eq!(check(&good()).len(), 11);
}

#[test]
fn nothing_seen_proves_nothing() {
    let claims = check(&Seen::default());
    assert!(claims.iter().all(|claim| !claim.held), "{claims:#?}");
}

/// Something that goes wrong, and the claim it breaks.
type Mishap = (fn(&mut Seen), &'static str);

#[test]
fn each_mishap_breaks_its_claim() {
    let mishaps: [Mishap; 13] = [
        (|seen| seen.phases[0].errors = 1, "outside the mesh the application works"),
        (|seen| seen.phases[0].plaintext_canary_hits = 0, "outside the mesh anyone on the link can read it"),
        (|seen| seen.phases[1].errors = 1, "enrolment loses no request"),
        (|seen| seen.phases[2].errors = 1, "in the mesh the application works"),
        (|seen| seen.phases[2].plaintext_canary_hits = 1, "in the mesh nothing on the link can be read"),
        (|seen| seen.phases[2].link_packets = 0, "in the mesh nothing on the link can be read"),
        (|seen| seen.phases[3].plaintext_canary_hits = 1, "in the mesh nothing on the link can be read"),
        (|seen| drop(seen.talks.pop()), "every call is mutual TLS between the two workloads' own identities"),
        (|seen| seen.phases[3].snoop_succeeded = 1, "a policy turns snoop away"),
        (|seen| seen.phases[3].errors = 1, "and nobody else notices"),
        (
            |seen| seen.denial.explained = Some("denied by policy a/c".to_owned()),
            "the access log and `leno explain` give the reason in the same words",
        ),
        (|seen| seen.left_behind = Some(vec!["leno-node-1".to_owned()]), "it cleans up"),
        (
            |seen| drop(seen.processes.1.insert("emojivoto/web".to_owned(), "4712".to_owned())),
            "enrolment restarts nothing",
        ),
    ];
    for (mishap, claim) in mishaps {
        let mut seen = good();
        mishap(&mut seen);
        assert_eq!(broken(&seen), [claim]);
    }
}
