//! Traefik's configuration. It has no pair: its proxies would have to accept any certificate of each other.

use serde_json::{Map, Value, json};

use super::setting::{Setting, Start, WORKERS};
use crate::scenario::{RULE_HEADER, RULE_PATH, route_prefix};

pub(super) fn start(setting: &Setting<'_>) -> Start {
    let path = |file: &str| setting.directory.join(file).display().to_string();
    let settings = json!({
        "global": { "checkNewVersion": false, "sendAnonymousUsage": false },
        "log": { "level": "ERROR" },
        "entryPoints": {
            "hop": { "address": setting.listen },
            "metrics": { "address": format!("127.0.0.1:{}", setting.listen.port() + 1) },
        },
        "metrics": { "prometheus": { "entryPoint": "metrics" } },
        "providers": { "file": { "filename": path(DYNAMIC), "watch": false } },
    });
    // JSON is YAML.
    Start {
        files: vec![("traefik.yaml", settings.to_string()), (DYNAMIC, dynamic(setting).to_string())],
        arguments: vec![format!("--configFile={}", path("traefik.yaml"))],
        environment: vec![("GOMAXPROCS", WORKERS.to_string())],
    }
}

const DYNAMIC: &str = "dynamic.yaml";

fn dynamic(setting: &Setting<'_>) -> Value {
    let router = |rule: String| {
        let mut router = json!({ "rule": rule, "service": "next", "entryPoints": ["hop"] });
        if setting.hop.rule {
            router["middlewares"] = json!(["header"]);
        }
        router
    };
    let mut routers = Map::new();
    for number in 0..setting.hop.routes {
        routers.insert(format!("route-{number}"), router(format!("PathPrefix(`{}`)", route_prefix(number))));
    }
    if setting.hop.rule {
        let (name, value) = RULE_HEADER;
        let rule = format!("PathPrefix(`{RULE_PATH}`) && Method(`GET`) && Header(`{name}`, `{value}`)");
        routers.insert("rule".to_owned(), router(rule));
    } else if routers.is_empty() {
        routers.insert("all".to_owned(), router("PathPrefix(`/`)".to_owned()));
    }
    let scheme = if setting.next_is_http2() { "h2c" } else { "http" };
    let mut http = json!({
        "routers": routers,
        "services": { "next": { "loadBalancer": {
            "servers": [{ "url": format!("{scheme}://{}", setting.next) }],
            "serversTransport": "next",
        } } },
        "serversTransports": { "next": { "maxIdleConnsPerHost": 1024 } },
    });
    if setting.hop.rule {
        http["middlewares"] = json!({ "header": { "headers": { "customRequestHeaders": { "X-Hop": "lab" } } } });
    }
    json!({ "http": http })
}
