//! What the control plane has said of users' objects: it stands in their status, where few look.

use leno_kubernetes::{CONDITION, Client, Error};
use leno_objects::{HBONE, Kind, WAYPOINT_CONTROLLER};
use serde_json::Value;

use super::{Finding, Outcome};

const CATEGORY: &str = "objects";

/// So many are named; the rest are counted.
const NAMED: usize = 10;

const POLICIES: [(Kind, &str); 3] = [
    (Kind::AuthorizationPolicy, "authorizationpolicies"),
    (Kind::PeerAuthentication, "peerauthentications"),
    (Kind::RequestAuthentication, "requestauthentications"),
];

const ROUTES: [(Kind, &str); 4] = [
    (Kind::HTTPRoute, "httproutes"),
    (Kind::GRPCRoute, "grpcroutes"),
    (Kind::TLSRoute, "tlsroutes"),
    (Kind::TCPRoute, "tcproutes"),
];

pub(super) async fn all(client: &Client) -> Vec<Finding> {
    let check = Finding::ok(CATEGORY, "every policy, route and Gateway is taken as it is written");
    let found = match said(client).await {
        Ok(found) => found,
        Err(error) => return vec![check.unknown(&error)],
    };
    let mut shown: Vec<String> = found.iter().take(NAMED).cloned().collect();
    if found.len() > NAMED {
        shown.push(format!("and {} more", found.len() - NAMED));
    }
    vec![check.unless(&shown, Outcome::Warning, "`kubectl describe` shows all that is said of an object")]
}

async fn said(client: &Client) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for (kind, plural) in POLICIES {
        let told = list(client, kind, plural).await?;
        found.extend(told.iter().filter_map(|object| Some(named(kind, object, &of_policy(object)?))));
    }
    for (kind, plural) in ROUTES {
        let told = list(client, kind, plural).await?;
        found.extend(told.iter().filter_map(|object| Some(named(kind, object, &of_route(object)?))));
    }
    let classes = list(client, Kind::GatewayClass, "gatewayclasses").await?;
    let gateways = list(client, Kind::Gateway, "gateways").await?;
    let is_known = |name: &str| classes.iter().any(|class| class["metadata"]["name"] == name);
    found.extend(gateways.iter().filter_map(|gateway| {
        let class = without_class(gateway).filter(|class| !is_known(class))?;
        Some(named(Kind::Gateway, gateway, &format!("there is no GatewayClass {class}, so nobody makes it a waypoint")))
    }));
    Ok(found)
}

/// The objects of a kind; none where the API server does not know it.
async fn list(client: &Client, kind: Kind, plural: &str) -> Result<Vec<Value>, Error> {
    let found = client.find::<Value>(&format!("/apis/{}/{plural}", kind.api_version())).await?;
    Ok(found.and_then(|mut list| list["items"].as_array_mut().map(std::mem::take)).unwrap_or_default())
}

fn named(kind: Kind, object: &Value, said: &str) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{kind} {}/{}: {said}", text("namespace"), text("name"))
}

fn of_policy(object: &Value) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?;
    let own = conditions.iter().find(|condition| condition["type"] == CONDITION && condition["status"] == "False")?;
    own["message"].as_str().map(str::to_owned)
}

/// What is said against a route, for any of its parents.
fn of_route(object: &Value) -> Option<String> {
    let parents = object["status"]["parents"].as_array()?;
    let own = parents.iter().filter(|parent| parent["controllerName"] == WAYPOINT_CONTROLLER);
    let conditions = own.flat_map(|parent| parent["conditions"].as_array().into_iter().flatten());
    let bad = |condition: &&Value| {
        condition["status"] == if condition["type"] == "PartiallyInvalid" { "True" } else { "False" }
    };
    conditions.filter(bad).find_map(|condition| condition["message"].as_str()).map(str::to_owned)
}

/// The class of a Gateway that can only be meant to be a waypoint.
fn without_class(gateway: &Value) -> Option<&str> {
    let listeners = gateway["spec"]["listeners"].as_array()?;
    listeners
        .iter()
        .any(|listener| listener["protocol"] == HBONE)
        .then(|| gateway["spec"]["gatewayClassName"].as_str())?
}

#[cfg(test)]
mod tests {
    use leno_testkit::api_server::ApiServer;
    use serde_json::json;

    use super::*;

    fn object(version: &str, kind: &str, name: &str, spec: &Value, status: &Value) -> Value {
        json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"},
            "spec": spec, "status": status,
        })
    }

    #[tokio::test]
    async fn what_stands_in_their_status_is_found() {
        let server = ApiServer::start().await;
        let client = Client::anonymous(&server.url()).expect("a URL");
        let (policies, gateways) = ("security.istio.io/v1", "gateway.networking.k8s.io/v1");
        let own = |status: &str, message: &str| {
            json!({"conditions": [
                {"type": "Other", "status": "False", "message": "not ours"},
                {"type": CONDITION, "status": status, "message": message},
            ]})
        };
        server.put(&object(policies, "AuthorizationPolicy", "good", &json!({}), &own("True", "in force")));
        assert_eq!(all(&client).await[0].outcome, Outcome::Ok);
        let bad = own("False", "unknown field principal; did you mean principals?");
        server.put(&object(policies, "AuthorizationPolicy", "bad", &json!({}), &bad));
        let parents = |controller: &str, kind: &str, status: &str| {
            let condition = json!({"type": kind, "status": status, "message": format!("{kind} is {status}")});
            json!({"parents": [{"controllerName": controller, "conditions": [condition]}]})
        };
        for (name, controller, kind, status) in [
            ("a", WAYPOINT_CONTROLLER, "Accepted", "True"),
            ("b", WAYPOINT_CONTROLLER, "ResolvedRefs", "False"),
            ("c", WAYPOINT_CONTROLLER, "PartiallyInvalid", "True"),
            ("d", "example.com/other", "Accepted", "False"),
        ] {
            server.put(&object(gateways, "HTTPRoute", name, &json!({}), &parents(controller, kind, status)));
        }
        for (name, class, protocol) in
            [("typo", "leno-waypiont", HBONE), ("theirs", "nginx", "HTTP"), ("known", "leno-waypoint", HBONE)]
        {
            let spec = json!({"gatewayClassName": class, "listeners": [{"port": 15008, "protocol": protocol}]});
            server.put(&object(gateways, "Gateway", name, &spec, &Value::Null));
        }
        server.put(&json!({"apiVersion": gateways, "kind": "GatewayClass", "metadata": {"name": "leno-waypoint"}}));
        let found = all(&client).await.remove(0);
        assert_eq!(found.outcome, Outcome::Warning);
        let expected = "AuthorizationPolicy shop/bad: unknown field principal; did you mean principals?; \
            HTTPRoute shop/b: ResolvedRefs is False; HTTPRoute shop/c: PartiallyInvalid is True; \
            Gateway shop/typo: there is no GatewayClass leno-waypiont, so nobody makes it a waypoint";
        assert_eq!(found.found.as_deref(), Some(expected));
    }
}
