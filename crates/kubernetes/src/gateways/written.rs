//! A status as it is written into an object, beside what others wrote there.

use leno_control::gateway_status::{GatewayStatus, Status};
use leno_control::status::Condition;
use leno_objects::GATEWAY_GROUP;
use serde_json::{Value, json};

use crate::status::written;

/// The change that gives an object its status; `None` if it has it.
pub(super) fn patch(object: &Value, status: &Status) -> Option<Value> {
    let before = &object["status"];
    let generation = &object["metadata"]["generation"];
    let after = match status {
        Status::Class(status) => {
            json!({"conditions": conditions(&before["conditions"], &status.conditions, generation)})
        }
        Status::Gateway(status) => gateway(before, status, generation),
    };
    let same = after.as_object().is_some_and(|after| after.iter().all(|(field, value)| before[field] == *value));
    // With the version that was read: lists are replaced as a whole, and others write into them, too.
    let version = &object["metadata"]["resourceVersion"];
    (!same).then(|| json!({"metadata": {"resourceVersion": version}, "status": after}))
}

fn gateway(before: &Value, status: &GatewayStatus, generation: &Value) -> Value {
    let listeners = status.listeners.iter().map(|listener| {
        let none = Vec::new();
        let mut known = before["listeners"].as_array().unwrap_or(&none).iter();
        let same = known.find(|it| it["name"] == listener.name.as_str()).cloned().unwrap_or_default();
        let kinds = listener.supported_kinds.iter().map(|kind| json!({"group": GATEWAY_GROUP, "kind": kind}));
        json!({
            "name": listener.name,
            "supportedKinds": kinds.collect::<Vec<_>>(),
            "attachedRoutes": listener.attached_routes,
            "conditions": conditions(&same["conditions"], &listener.conditions, generation),
        })
    });
    let addresses = status.hostname.iter().map(|hostname| json!({"type": "Hostname", "value": hostname}));
    json!({
        "addresses": addresses.collect::<Vec<_>>(),
        "conditions": conditions(&before["conditions"], &status.conditions, generation),
        "listeners": listeners.collect::<Vec<_>>(),
    })
}

/// The conditions, each with the time since when it is so. Those that others wrote stay.
fn conditions(before: &Value, wanted: &[Condition], generation: &Value) -> Value {
    let mut all = before.as_array().cloned().unwrap_or_default();
    for condition in wanted {
        let own = all.iter().position(|it| it["type"] == condition.kind);
        let now = written(own.and_then(|at| all.get(at)), condition, generation);
        match own.and_then(|at| all.get_mut(at)) {
            Some(own) => *own = now,
            None => all.push(now),
        }
    }
    Value::Array(all)
}
