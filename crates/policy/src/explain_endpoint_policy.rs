//! What a DestinationRule does to the endpoints of a service's port, in words.

use std::fmt::Display;

use leno_model::ServiceName;
use leno_model::http::{Balancing, Ejection, EndpointPolicy, EndpointRules, HashOf};

/// One line about a port of a service; `None` if nothing is changed there.
pub(crate) fn said(policy: &EndpointPolicy, service: &ServiceName, port: u16) -> Option<String> {
    let does = does(policy.of_port(port));
    (!does.is_empty()).then(|| format!("for {service}:{port}, DestinationRule {} says: {}", policy.id, does.join("; ")))
}

fn does(rules: &EndpointRules) -> Vec<String> {
    let EndpointRules {
        balancing,
        anywhere,
        max_connections,
        connect_timeout,
        idle_timeout,
        max_pending,
        max_requests,
        max_requests_per_connection,
        max_retries,
        ejection,
        retry_budget,
    } = rules;
    let mut out = Vec::new();
    out.extend(balancing.as_ref().map(chosen));
    if *anywhere {
        out.push("near endpoints are not preferred".to_owned());
    }
    let mut add = |part: Option<String>| out.extend(part);
    add(max_connections.map(|most| format!("connections: at most {most}")));
    add(connect_timeout.map(|limit| format!("a connect may take {limit:?}")));
    add(idle_timeout.map(|limit| format!("a connection without requests is kept for {limit:?}")));
    add(max_pending.map(|most| format!("requests that wait for a connection: at most {most}")));
    add(max_requests.map(|most| format!("open requests: at most {most}")));
    add(max_requests_per_connection.map(|most| format!("requests on one connection: at most {most}")));
    add(max_retries.map(|most| format!("open retries: at most {most}")));
    add(retry_budget.map(|budget| {
        let share = f64::from(budget.per_million) / 10_000.0;
        format!("retries: at most {share} % of the open requests, or {} if that is more", budget.at_least)
    }));
    add(ejection.as_ref().and_then(ejected));
    out
}

fn chosen(balancing: &Balancing) -> String {
    match balancing {
        Balancing::LeastRequest => "of two endpoints the less busy one is chosen".to_owned(),
        Balancing::RoundRobin => "endpoints are chosen in turn".to_owned(),
        Balancing::Random => "endpoints are chosen at random".to_owned(),
        Balancing::Hash(of) => {
            let of = match of {
                HashOf::Header(name) => format!("header {name}"),
                HashOf::Cookie(name) => format!("cookie {name}"),
                HashOf::SourceIp => "client address".to_owned(),
                HashOf::Query(name) => format!("query parameter {name}"),
            };
            format!("requests with the same {of} go to the same endpoint, those without to the less busy one of two")
        }
    }
}

fn ejected(ejection: &Ejection) -> Option<String> {
    let after = |count: Option<u32>, what: &dyn Display| count.map(|count| format!("{count} {what} in a row"));
    let reasons = [
        after(ejection.consecutive_5xx, &"answers 5xx"),
        after(ejection.consecutive_gateway, &"answers 502 to 504"),
        after(ejection.consecutive_local.filter(|_| ejection.split_local), &"failures before an answer"),
    ];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    let (base, most, least) = (ejection.base, ejection.max_percent, ejection.min_health_percent);
    let healthy = if least > 0 { format!(", and none unless {least} % are well") } else { String::new() };
    (!reasons.is_empty()).then(|| {
        let reasons = reasons.join(" or ");
        format!("an endpoint is left out for {base:?} after {reasons}, at most {most} % of them{healthy}")
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_model::PolicyName;
    use leno_model::http::RetryBudget;

    use super::*;

    fn policy(rules: EndpointRules, ports: Vec<(u16, EndpointRules)>) -> EndpointPolicy {
        let id = PolicyName { namespace: "shop".into(), name: "web".into() };
        EndpointPolicy { id, services: Vec::new(), rules, ports }
    }

    fn service() -> ServiceName {
        ServiceName { namespace: "shop".into(), hostname: "web.shop.svc".into() }
    }

    #[test]
    fn each_limit_is_named() {
        let second = Duration::from_secs(1);
        let rules = EndpointRules {
            balancing: Some(Balancing::Hash(HashOf::Header("x-user".into()))),
            anywhere: true,
            max_connections: Some(1),
            connect_timeout: Some(second),
            idle_timeout: Some(second * 60),
            max_pending: Some(2),
            max_requests: Some(3),
            max_requests_per_connection: Some(4),
            max_retries: Some(5),
            ejection: Some(Ejection {
                consecutive_5xx: Some(6),
                consecutive_gateway: None,
                consecutive_local: Some(7),
                split_local: true,
                interval: second,
                base: second * 30,
                max_percent: 10,
                min_health_percent: 50,
            }),
            retry_budget: Some(RetryBudget { per_million: 250_000, at_least: 3 }),
        };
        let expected = "for shop/web.shop.svc:80, DestinationRule shop/web says: requests with the same header x-user go to the \
                        same endpoint, those without to the less busy one of two; near endpoints are not preferred; connections: \
                        at most 1; a connect may take 1s; a connection without requests is kept for 60s; requests that wait for \
                        a connection: at most 2; open requests: at most 3; requests on one connection: at most 4; open retries: \
                        at most 5; retries: at most 25 % of the open requests, or 3 if that is more; an endpoint is left out for \
                        30s after 6 answers 5xx in a row or 7 failures before an answer in a row, at most 10 % of them, and none \
                        unless 50 % are well";
        assert_eq!(said(&policy(rules, Vec::new()), &service(), 80).unwrap(), expected);
    }

    #[test]
    fn what_changes_nothing_at_a_port_is_not_named() {
        let turns = EndpointRules { balancing: Some(Balancing::RoundRobin), ..EndpointRules::default() };
        let policy = policy(EndpointRules::default(), vec![(81, turns)]);
        assert_eq!(said(&policy, &service(), 80), None);
        let expected = "for shop/web.shop.svc:81, DestinationRule shop/web says: endpoints are chosen in turn";
        assert_eq!(said(&policy, &service(), 81).unwrap(), expected);
    }
}
