//! Conversion between what is said of services' endpoints and its message.

use std::time::Duration;

use leno_model as model;
use leno_model::http;

use super::fields::{known, port, service_name};
use crate::ConvertError;
use crate::waypoint as wire;

/// Reads what is said of services' endpoints.
///
/// # Errors
/// If it has a value that this version does not know, or lacks something.
pub fn endpoint_policy_from_proto(policy: wire::EndpointPolicy) -> Result<http::EndpointPolicy, ConvertError> {
    if policy.name.is_empty() {
        return Err(ConvertError::Missing { field: "name" });
    }
    let of_port = |one: wire::PortRules| Ok((port("port", one.port)?, rules(one.rules)?));
    Ok(http::EndpointPolicy {
        id: model::PolicyName { namespace: policy.namespace.into(), name: policy.name.into() },
        services: policy.services.iter().map(|name| service_name("service", name)).collect::<Result<_, _>>()?,
        rules: rules(policy.rules)?,
        ports: policy.ports.into_iter().map(of_port).collect::<Result<_, ConvertError>>()?,
    })
}

fn rules(rules: Option<wire::EndpointRules>) -> Result<http::EndpointRules, ConvertError> {
    let rules = rules.unwrap_or_default();
    Ok(http::EndpointRules {
        balancing: rules.balancing.map(balancing).transpose()?,
        anywhere: rules.anywhere,
        max_connections: rules.max_connections,
        connect_timeout: rules.connect_timeout_ms.map(Duration::from_millis),
        idle_timeout: rules.idle_timeout_ms.map(Duration::from_millis),
        max_pending: rules.max_pending,
        max_requests: rules.max_requests,
        max_requests_per_connection: rules.max_requests_per_connection,
        max_retries: rules.max_retries,
        ejection: rules.ejection.map(|one| http::Ejection {
            consecutive_5xx: one.consecutive_5xx,
            consecutive_gateway: one.consecutive_gateway,
            consecutive_local: one.consecutive_local,
            split_local: one.split_local,
            interval: Duration::from_millis(one.interval_ms),
            base: Duration::from_millis(one.base_ms),
            max_percent: one.max_percent,
            min_health_percent: one.min_health_percent,
        }),
        retry_budget: rules
            .retry_budget
            .map(|budget| http::RetryBudget { per_million: budget.per_million, at_least: budget.at_least }),
    })
}

fn balancing(balancing: wire::endpoint_rules::Balancing) -> Result<http::Balancing, ConvertError> {
    use wire::hash_of::Of;
    use wire::simple_balancing::By;
    Ok(match balancing {
        wire::endpoint_rules::Balancing::Simple(simple) => match known("balancing", simple.by)? {
            By::LeastRequest => http::Balancing::LeastRequest,
            By::RoundRobin => http::Balancing::RoundRobin,
            By::Random => http::Balancing::Random,
            By::Unspecified => return Err(ConvertError::Missing { field: "balancing" }),
        },
        wire::endpoint_rules::Balancing::Hash(hash) => {
            http::Balancing::Hash(match hash.of.ok_or(ConvertError::Missing { field: "hash" })? {
                Of::Header(name) => http::HashOf::Header(name.into()),
                Of::Cookie(name) => http::HashOf::Cookie(name.into()),
                Of::SourceIp(_) => http::HashOf::SourceIp,
                Of::Query(name) => http::HashOf::Query(name.into()),
            })
        }
    })
}

/// Writes what is said of services' endpoints.
pub fn endpoint_policy_to_proto(policy: &http::EndpointPolicy) -> wire::EndpointPolicy {
    let of_port = |(port, rules): &(u16, http::EndpointRules)| wire::PortRules {
        port: (*port).into(),
        rules: Some(rules_to_proto(rules)),
    };
    wire::EndpointPolicy {
        namespace: policy.id.namespace.to_string(),
        name: policy.id.name.to_string(),
        services: policy.services.iter().map(ToString::to_string).collect(),
        rules: Some(rules_to_proto(&policy.rules)),
        ports: policy.ports.iter().map(of_port).collect(),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn rules_to_proto(rules: &http::EndpointRules) -> wire::EndpointRules {
    wire::EndpointRules {
        balancing: rules.balancing.as_ref().map(balancing_to_proto),
        anywhere: rules.anywhere,
        max_connections: rules.max_connections,
        connect_timeout_ms: rules.connect_timeout.map(milliseconds),
        idle_timeout_ms: rules.idle_timeout.map(milliseconds),
        max_pending: rules.max_pending,
        max_requests: rules.max_requests,
        max_requests_per_connection: rules.max_requests_per_connection,
        max_retries: rules.max_retries,
        ejection: rules.ejection.as_ref().map(|one| wire::Ejection {
            consecutive_5xx: one.consecutive_5xx,
            consecutive_gateway: one.consecutive_gateway,
            consecutive_local: one.consecutive_local,
            split_local: one.split_local,
            interval_ms: milliseconds(one.interval),
            base_ms: milliseconds(one.base),
            max_percent: one.max_percent,
            min_health_percent: one.min_health_percent,
        }),
        retry_budget: rules
            .retry_budget
            .map(|budget| wire::RetryBudget { per_million: budget.per_million, at_least: budget.at_least }),
    }
}

fn balancing_to_proto(balancing: &http::Balancing) -> wire::endpoint_rules::Balancing {
    use wire::hash_of::Of;
    use wire::simple_balancing::By;
    let simple = |by: By| wire::endpoint_rules::Balancing::Simple(wire::SimpleBalancing { by: by.into() });
    match balancing {
        http::Balancing::LeastRequest => simple(By::LeastRequest),
        http::Balancing::RoundRobin => simple(By::RoundRobin),
        http::Balancing::Random => simple(By::Random),
        http::Balancing::Hash(hash) => wire::endpoint_rules::Balancing::Hash(wire::HashOf {
            of: Some(match hash {
                http::HashOf::Header(name) => Of::Header(name.to_string()),
                http::HashOf::Cookie(name) => Of::Cookie(name.to_string()),
                http::HashOf::SourceIp => Of::SourceIp(true),
                http::HashOf::Query(name) => Of::Query(name.to_string()),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> http::EndpointPolicy {
        let ejection = http::Ejection {
            consecutive_5xx: Some(5),
            consecutive_gateway: None,
            consecutive_local: Some(2),
            split_local: true,
            interval: Duration::from_secs(10),
            base: Duration::from_millis(1500),
            max_percent: 50,
            min_health_percent: 10,
        };
        let rules = http::EndpointRules {
            balancing: Some(http::Balancing::Hash(http::HashOf::Cookie("who".into()))),
            anywhere: true,
            max_connections: Some(1),
            connect_timeout: Some(Duration::from_secs(1)),
            idle_timeout: Some(Duration::from_secs(2)),
            max_pending: Some(0),
            max_requests: Some(3),
            max_requests_per_connection: Some(4),
            max_retries: Some(5),
            ejection: Some(ejection),
            retry_budget: Some(http::RetryBudget { per_million: 200_000, at_least: 3 }),
        };
        let by = |balancing| http::EndpointRules { balancing: Some(balancing), ..http::EndpointRules::default() };
        http::EndpointPolicy {
            id: model::PolicyName { namespace: "shop".into(), name: "web".into() },
            services: vec![model::ServiceName { namespace: "shop".into(), hostname: "web.shop.svc".into() }],
            rules,
            ports: vec![
                (80, by(http::Balancing::RoundRobin)),
                (81, by(http::Balancing::Random)),
                (82, by(http::Balancing::LeastRequest)),
                (83, by(http::Balancing::Hash(http::HashOf::Header("x".into())))),
                (84, by(http::Balancing::Hash(http::HashOf::SourceIp))),
                (85, by(http::Balancing::Hash(http::HashOf::Query("q".into())))),
                (86, http::EndpointRules::default()),
            ],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(endpoint_policy_from_proto(endpoint_policy_to_proto(&policy())), Ok(policy()));
    }

    #[test]
    fn what_is_unknown_or_missing_is_refused() {
        let change = |change: &dyn Fn(&mut wire::EndpointPolicy)| {
            let mut message = endpoint_policy_to_proto(&policy());
            change(&mut message);
            endpoint_policy_from_proto(message)
        };
        let simple = |by| {
            let balancing = Some(wire::endpoint_rules::Balancing::Simple(wire::SimpleBalancing { by }));
            Some(wire::EndpointRules { balancing, ..wire::EndpointRules::default() })
        };
        assert!(change(&|message| message.rules = simple(99)).is_err());
        assert!(change(&|message| message.rules = simple(0)).is_err());
        assert!(change(&|message| message.ports[0].port = 70_000).is_err());
        assert!(change(&|message| message.services.push("web".to_owned())).is_err());
        assert!(change(&|message| message.name.clear()).is_err());
    }
}
