//! What control planes write: their authority, leases, status and Events, as any API server takes them.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::objects::{Object, Objects};
use super::request::Request;

/// How an API server says no.
pub(super) fn refusal(status: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": status.as_u16(),
    })
}

/// The answer to a request that writes, or reads one object.
pub(super) fn answer(objects: &mut Objects, method: &Method, request: &Request, body: Value) -> (StatusCode, Value) {
    let no = |status: StatusCode, reason: &str, message: &str| (status, refusal(status, reason, message));
    let Some(collection) = objects.of(&request.collection) else {
        return no(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
    };
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let Some(name) = &request.name else {
        return if *method == Method::POST {
            create(objects, request, body)
        } else {
            no(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "this is not done to all objects of a kind")
        };
    };
    let Some(mut held) = collection.get(namespace, name).map(|object| object.value()) else {
        return no(StatusCode::NOT_FOUND, "NotFound", &format!("{} {name:?} not found", collection.kind()));
    };
    match *method {
        Method::GET => (StatusCode::OK, held),
        Method::DELETE => {
            objects.delete(&request.collection, |version| {
                held["metadata"]["resourceVersion"] = version.to_string().into();
                Object::of_value(&held)
            });
            objects.tell(&request.collection);
            (StatusCode::OK, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
        }
        Method::PUT => {
            let wanted = &body["metadata"]["resourceVersion"];
            if wanted.as_str().is_some_and(|wanted| !wanted.is_empty())
                && *wanted != held["metadata"]["resourceVersion"]
            {
                return no(StatusCode::CONFLICT, "Conflict", "the object has been modified");
            }
            let mut body = body;
            for kept in ["uid", "creationTimestamp"] {
                body["metadata"][kept] = held["metadata"][kept].take();
            }
            (StatusCode::OK, store(objects, request, body))
        }
        Method::PATCH => {
            merge(&mut held, body);
            (StatusCode::OK, store(objects, request, held))
        }
        _ => no(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "this is not done to an object"),
    }
}

fn create(objects: &mut Objects, request: &Request, mut body: Value) -> (StatusCode, Value) {
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let given = body["metadata"]["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    let prefix = body["metadata"]["generateName"].as_str().unwrap_or_default();
    let name = given.unwrap_or_else(|| format!("{prefix}{:05x}", objects.version() & 0xf_ffff));
    if objects.of(&request.collection).is_some_and(|all| all.get(namespace, &name).is_some()) {
        let status = StatusCode::CONFLICT;
        return (status, refusal(status, "AlreadyExists", &format!("{name:?} already exists")));
    }
    let metadata = &mut body["metadata"];
    metadata["name"] = name.into();
    if request.namespace.is_some() {
        metadata["namespace"] = namespace.into();
    }
    metadata["uid"] = format!("5f2d7a1e-0000-4000-8000-{:012}", objects.version()).into();
    metadata["creationTimestamp"] = crate::measure::now().into();
    (StatusCode::CREATED, store(objects, request, body))
}

fn store(objects: &mut Objects, request: &Request, mut body: Value) -> Value {
    if let Some(collection) = objects.of(&request.collection) {
        body["kind"] = collection.kind().into();
        body["apiVersion"] = collection.api_version().into();
    }
    objects.put(&request.collection, |version| {
        body["metadata"]["resourceVersion"] = version.to_string().into();
        Object::of_value(&body)
    });
    objects.tell(&request.collection);
    body
}

/// RFC 7396.
fn merge(into: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    into.as_object_mut().map(|object| object.remove(&key));
                } else {
                    merge(&mut into[key], value);
                }
            }
        }
        other => *into = other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_kept_and_conflicts_are_told() {
        let mut objects = Objects::new();
        let mut ask = |method: Method, path: &str, body: Value| {
            answer(&mut objects, &method, &Request::parse(path).unwrap(), body)
        };
        let all = "/api/v1/namespaces/a/configmaps";
        let one = format!("{all}/m");
        assert_eq!(ask(Method::GET, &one, Value::Null).0, StatusCode::NOT_FOUND);
        let made = ask(Method::POST, all, json!({"metadata": {"name": "m"}, "data": {"k": "1"}}));
        assert_eq!(made.0, StatusCode::CREATED);
        assert_eq!((&made.1["kind"], &made.1["metadata"]["namespace"]), (&json!("ConfigMap"), &json!("a")));
        assert_eq!(ask(Method::POST, all, json!({"metadata": {"name": "m"}})).0, StatusCode::CONFLICT);
        let mut newer = made.1.clone();
        newer["data"]["k"] = "2".into();
        let replaced = ask(Method::PUT, &one, newer.clone());
        assert_eq!((replaced.0, &replaced.1["data"]["k"]), (StatusCode::OK, &json!("2")));
        assert_eq!(replaced.1["metadata"]["uid"], made.1["metadata"]["uid"]);
        assert_eq!(ask(Method::PUT, &one, newer).0, StatusCode::CONFLICT, "of a version that is not the latest");
        let patched = ask(Method::PATCH, &one, json!({"data": {"k": null, "l": "3"}}));
        assert_eq!(patched.1["data"], json!({"l": "3"}));
        assert_eq!(ask(Method::GET, &one, Value::Null).1, patched.1);
        assert_eq!(ask(Method::DELETE, &one, Value::Null).0, StatusCode::OK);
        assert_eq!(ask(Method::GET, &one, Value::Null).0, StatusCode::NOT_FOUND);
        assert_eq!(ask(Method::POST, "/apis/example.com/v1/cats", json!({})).0, StatusCode::NOT_FOUND);
        let events = "/api/v1/namespaces/a/events";
        let named = |(_, event): (StatusCode, Value)| event["metadata"]["name"].as_str().unwrap().to_owned();
        let first = named(ask(Method::POST, events, json!({"metadata": {"generateName": "e-"}})));
        let second = named(ask(Method::POST, events, json!({"metadata": {"generateName": "e-"}})));
        assert!(first.starts_with("e-") && first != second);
    }
}
