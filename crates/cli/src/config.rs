//! `leno config`: what the node proxies believe, as they tell it at `/config_dump`.

use anyhow::Context as _;
use leno_local::client::NodePort;
use serde_json::{Value, json};

use crate::args::{ConfigArgs, ConfigPart, Format};
use crate::output;
use crate::stage::ask;
use crate::target::{Source as _, Target, chosen};

/// Path of the page, as Istio's proxies have it.
pub(crate) const PATH: &str = "/config_dump";

/// `leno config`.
pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    ask(async { print(&Target::installed(&args.installed).await?, args).await })
}

async fn print(target: &Target, args: &ConfigArgs) -> anyhow::Result<()> {
    let mut dumps = Vec::new();
    for node in chosen(target, args.node.as_slice()).await? {
        let page = target.page(&node, NodePort::Admin, PATH).await;
        let page = page.with_context(|| format!("cannot read the configuration of {node}'s proxy"))?;
        let dump: Value = serde_json::from_str(&page).with_context(|| format!("{node}'s proxy tells no JSON"))?;
        dumps.push((node, dump));
    }
    if args.output.output == Format::Json {
        let nodes: Vec<_> = dumps.into_iter().map(|(node, dump)| of_node(&node, dump, args.part)).collect();
        return output::json(&json!({"of": target.json(), "nodes": nodes}));
    }
    target.announce();
    output::line(&text(&dumps, args.part))
}

fn of_node(node: &str, mut dump: Value, part: ConfigPart) -> Value {
    match part {
        ConfigPart::All => {
            dump["node"] = node.into();
            dump
        }
        part => json!({"node": node, key(part): dump[key(part)].take()}),
    }
}

fn key(part: ConfigPart) -> &'static str {
    match part {
        ConfigPart::Workloads => "workloads",
        ConfigPart::Services => "services",
        ConfigPart::Policies => "policies",
        ConfigPart::Certificates => "certificates",
        ConfigPart::All => "config",
    }
}

fn text(dumps: &[(String, Value)], part: ConfigPart) -> String {
    use ConfigPart::{All, Certificates, Policies, Services, Workloads};
    let parts: &[ConfigPart] = match part {
        All => &[Workloads, Services, Policies, Certificates],
        Workloads => &[Workloads],
        Services => &[Services],
        Policies => &[Policies],
        Certificates => &[Certificates],
    };
    let tables: Vec<_> = parts.iter().map(|part| table(dumps, *part)).collect();
    tables.join("\n\n")
}

/// The cells of an item, after that of its node.
type Cells = fn(&Value) -> Vec<String>;

/// One row for each item of each node.
fn table(dumps: &[(String, Value)], part: ConfigPart) -> String {
    let (heading, cells): (&[&str], Cells) = match part {
        ConfigPart::Workloads => {
            (&["NODE", "NAMESPACE", "WORKLOAD", "ADDRESSES", "RUNS ON", "PROTOCOL", "STATUS", "POLICIES"], workload)
        }
        ConfigPart::Services => (&["NODE", "NAMESPACE", "SERVICE", "ADDRESSES", "PORTS", "HEALTHY"], service),
        ConfigPart::Policies => (&["NODE", "NAMESPACE", "POLICY", "ACTION", "SCOPE", "RULES", ""], policy),
        ConfigPart::Certificates | ConfigPart::All => {
            (&["NODE", "IDENTITY", "STATE", "SERIAL NUMBER", "VALID UNTIL", ""], certificate)
        }
    };
    let mut rows = Vec::new();
    for (node, dump) in dumps {
        for item in dump[key(part)].as_array().into_iter().flatten() {
            let mut row = vec![node.clone()];
            row.extend(cells(item));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return format!("no {}", key(part));
    }
    output::table(heading, &rows)
}

fn word(value: &Value) -> String {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

fn list(value: &Value) -> String {
    let all: Vec<_> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

fn workload(item: &Value) -> Vec<String> {
    let fields = ["namespace", "name"].map(|field| word(&item[field]));
    let mut cells = fields.to_vec();
    cells.push(list(&item["workloadIps"]));
    cells.extend(["node", "protocol", "status"].map(|field| word(&item[field])));
    cells.push(list(&item["authorizationPolicies"]));
    cells
}

fn service(item: &Value) -> Vec<String> {
    let ports: Vec<_> = item["ports"].as_object().into_iter().flatten().map(|(port, _)| port.as_str()).collect();
    // An address is told with its network, which is empty where there is one.
    let addresses =
        list(&item["vips"]).split(',').map(|vip| vip.trim_start_matches('/').to_owned()).collect::<Vec<_>>();
    let endpoints = item["endpoints"].as_object();
    let healthy = endpoints.into_iter().flatten().filter(|(_, endpoint)| endpoint["status"] == "Healthy").count();
    let all = endpoints.map_or(0, serde_json::Map::len);
    let ports = if ports.is_empty() { "-".to_owned() } else { ports.join(",") };
    vec![word(&item["namespace"]), word(&item["name"]), addresses.join(","), ports, format!("{healthy}/{all}")]
}

fn policy(item: &Value) -> Vec<String> {
    let mut cells = ["namespace", "name", "action", "scope"].map(|field| word(&item[field])).to_vec();
    cells.push(item["rules"].as_array().map_or(0, Vec::len).to_string());
    let mut notes = Vec::new();
    if item["dryRun"] == true {
        notes.push("dry run".to_owned());
    }
    notes.extend(item["keptFor"]["because"].as_str().map(str::to_owned));
    if !item["notUnderstood"].is_null() {
        notes.push("not understood, so it is closed".to_owned());
    }
    cells.push(notes.join("; "));
    cells
}

fn certificate(item: &Value) -> Vec<String> {
    let leaf = &item["certChain"][0];
    let error = item["lastError"].as_str().unwrap_or_default().to_owned();
    vec![
        word(&item["identity"]),
        word(&item["state"]),
        word(&leaf["serialNumber"]),
        word(&leaf["expirationTime"]),
        error,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> Value {
        json!({
            "workloads": [{
                "namespace": "shop", "name": "web-1", "workloadIps": ["10.0.0.1", "fd00::1"], "node": "n1",
                "protocol": "HBONE", "status": "Healthy", "authorizationPolicies": ["shop/only-web"],
            }],
            "services": [{
                "namespace": "shop", "name": "web", "vips": ["/10.96.0.1"], "ports": {"80": 8080},
                "endpoints": {"a": {"status": "Healthy"}, "b": {"status": "Unhealthy"}},
            }],
            "policies": [{
                "namespace": "shop", "name": "only-web", "action": "Allow", "scope": "WorkloadSelector", "rules": [[]],
                "dryRun": true, "notUnderstood": null,
            }],
            "certificates": [{
                "identity": "spiffe://c/ns/shop/sa/web", "state": "Available", "lastError": null,
                "certChain": [{"serialNumber": "7", "expirationTime": "2026-11-26T04:50:00Z"}],
            }],
            "config": {"port": 1},
        })
    }

    #[test]
    fn each_part_is_a_table() {
        let text = text(&[("n1".to_owned(), dump())], ConfigPart::All);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split("   ").map(str::trim).collect()).collect();
        let has = |wanted: &str| {
            rows.iter()
                .any(|row| row.iter().filter(|cell| !cell.is_empty()).eq(wanted.split('|').collect::<Vec<_>>().iter()))
        };
        assert!(has("n1|shop|web-1|10.0.0.1,fd00::1|n1|HBONE|Healthy|shop/only-web"), "{text}");
        assert!(has("n1|shop|web|10.96.0.1|80|1/2"), "{text}");
        assert!(has("n1|shop|only-web|Allow|WorkloadSelector|1|dry run"), "{text}");
        assert!(has("n1|spiffe://c/ns/shop/sa/web|Available|7|2026-11-26T04:50:00Z"), "{text}");
        assert_eq!(super::text(&[("n1".to_owned(), json!({}))], ConfigPart::Policies), "no policies");
    }

    #[test]
    fn for_programs_it_is_the_proxys_own_json() {
        let policies = of_node("n1", dump(), ConfigPart::Policies);
        assert_eq!((&policies["node"], &policies["policies"][0]["name"]), (&json!("n1"), &json!("only-web")));
        assert!(policies["config"].is_null());
        assert_eq!(of_node("n1", dump(), ConfigPart::All)["config"]["port"], 1);
    }
}
