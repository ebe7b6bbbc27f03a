//! `leno waypoint apply`, `list`, `status` and `delete`.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use leno_kubernetes::{Client, Cluster, Patch};
use leno_objects::{
    Gateway, HBONE, Kind, Mode, Object, USE_WAYPOINT, WAYPOINT_CLASS, WAYPOINT_FOR, allows_bypass, decode,
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::until_done;
use crate::args::waypoint::{ApplyArgs, DeleteArgs, ListArgs, PlaceArgs, Traffic, WaypointCommand, WaypointStatusArgs};
use crate::args::{Format, ObjectFormat};
use crate::output;

/// How often a waypoint is looked at.
const INTERVAL: Duration = Duration::from_millis(250);
const API: &str = "/apis/gateway.networking.k8s.io/v1";

/// Runs one of them.
pub(crate) fn run(command: WaypointCommand) -> anyhow::Result<ExitCode> {
    until_done(async {
        match command {
            WaypointCommand::Apply(args) => apply(args).await?,
            WaypointCommand::List(args) => list(args).await?,
            WaypointCommand::Status(args) => return status(args).await,
            WaypointCommand::Delete(args) => delete(args).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Logs in. Returns also the namespace that is meant.
async fn login(place: &PlaceArgs) -> anyhow::Result<(Client, String)> {
    let cluster = Cluster { kubeconfig: place.kubeconfig.clone(), context: place.context.clone() };
    let hint = "these commands are about a cluster; a stage takes a Gateway as a file, which `leno waypoint apply -o yaml` prints";
    let client = Client::new(&cluster).await.context(hint)?;
    let namespace = place.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    Ok((client, namespace))
}

fn path(namespace: &str, name: &str) -> String {
    format!("{API}/namespaces/{namespace}/gateways/{name}")
}

fn gateway(namespace: &str, name: &str, traffic: Option<Traffic>) -> Value {
    let word = traffic.map(|traffic| match traffic {
        Traffic::Service => "service",
        Traffic::Workload => "workload",
        Traffic::All => "all",
        Traffic::None => "none",
    });
    let mut gateway = json!({
        "apiVersion": Kind::Gateway.api_version(), "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "gatewayClassName": WAYPOINT_CLASS,
            "listeners": [{"name": "mesh", "port": leno_model::HBONE_PORT, "protocol": HBONE}],
        },
    });
    if let Some(word) = word {
        gateway["metadata"]["labels"] = json!({WAYPOINT_FOR: word});
    }
    gateway
}

async fn apply(args: ApplyArgs) -> anyhow::Result<()> {
    if let Some(format) = args.output {
        let namespace = args.place.namespace.as_deref().unwrap_or(leno_objects::DEFAULT_NAMESPACE);
        let gateway = gateway(namespace, &args.name, args.traffic);
        return match format {
            ObjectFormat::Json => output::json(&gateway),
            // JSON is YAML, too; a person reads this form more easily.
            ObjectFormat::Yaml => output::line(&yaml(namespace, &args)),
        };
    }
    let (client, namespace) = login(&args.place).await?;
    let around = format!("/api/v1/namespaces/{namespace}");
    let found: Option<Value> =
        client.find(&around).await.with_context(|| format!("looking for the namespace {namespace}"))?;
    let Some(found) = found else { bail!("there is no namespace {namespace}; `kubectl create namespace {namespace}`") };
    let used = found["metadata"]["labels"][USE_WAYPOINT].as_str();
    if args.enroll_namespace
        && !args.overwrite
        && let Some(other) = used.filter(|other| **other != args.name)
    {
        bail!("namespace {namespace} uses the waypoint {other} already; --overwrite changes that");
    }
    let object = gateway(&namespace, &args.name, args.traffic);
    let at = format!("{}?fieldManager=leno-cli&force=true", path(&namespace, &args.name));
    match client.patch(&at, Patch::Apply, &object).await {
        Err(error) if error.is_not_found() => {
            bail!("this cluster does not know the kind Gateway; `leno upgrade` brings its definition")
        }
        applied => applied.context("applying the Gateway")?,
    }
    output::line(&format!("Gateway {namespace}/{} applied", args.name))?;
    if args.enroll_namespace {
        let label = json!({"metadata": {"labels": {USE_WAYPOINT: args.name}}});
        client.patch(&around, Patch::Merge, &label).await.context("labelling the namespace")?;
        output::line(&format!("{namespace}: kubectl label namespace {namespace} {USE_WAYPOINT}={}", args.name))?;
    }
    if args.wait.wait {
        wait(&client, &namespace, &args.name, Instant::now() + args.wait.timeout).await?;
        output::line(&format!("Gateway {namespace}/{} is programmed", args.name))?;
    }
    Ok(())
}

fn yaml(namespace: &str, args: &ApplyArgs) -> String {
    let object = gateway(namespace, &args.name, args.traffic);
    let labels = match object["metadata"]["labels"][WAYPOINT_FOR].as_str() {
        Some(word) => format!("\n  labels: {{{WAYPOINT_FOR}: {word}}}"),
        None => String::new(),
    };
    format!(
        "apiVersion: {}\nkind: Gateway\nmetadata:\n  name: {}\n  namespace: {namespace}{labels}\nspec:\n  gatewayClassName: {WAYPOINT_CLASS}\n  \
         listeners:\n    - name: mesh\n      port: {}\n      protocol: {HBONE}",
        Kind::Gateway.api_version(),
        args.name,
        leno_model::HBONE_PORT
    )
}

/// A waypoint, as it is shown.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Shown {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) traffic: String,
    pub(crate) programmed: bool,
    pub(crate) message: String,
    /// Whether it may be gone around.
    pub(crate) bypass: bool,
}

impl Shown {
    /// What is shown of a Gateway; `None` if it is no waypoint of Leno's classes.
    fn of(object: &Value) -> Option<Self> {
        let decoded = decode(Kind::Gateway, Mode::Lenient, object).ok()?;
        let Object::Gateway(gateway) = decoded.object else { return None };
        gateway.is_waypoint(None).then(|| {
            let Gateway { metadata, spec } = &gateway;
            let none = Vec::new();
            let conditions = object["status"]["conditions"].as_array().unwrap_or(&none);
            let programmed = conditions.iter().find(|condition| condition["type"] == "Programmed");
            let current = |it: &&Value| it["observedGeneration"] == object["metadata"]["generation"];
            let holds = programmed.filter(current).is_some_and(|condition| condition["status"] == "True");
            let told = programmed.and_then(|condition| condition["message"].as_str());
            Self {
                namespace: metadata.namespace.to_string(),
                name: metadata.name.to_string(),
                class: spec.gateway_class_name.clone(),
                traffic: metadata.label(WAYPOINT_FOR).unwrap_or("service").to_owned(),
                programmed: holds,
                message: told.unwrap_or("no control plane has looked at it yet").to_owned(),
                bypass: allows_bypass(metadata),
            }
        })
    }
}

/// Those of a namespace, or all of them.
pub(crate) async fn waypoints(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<Shown>> {
    let at = namespace.map_or_else(|| format!("{API}/gateways"), |it| format!("{API}/namespaces/{it}/gateways"));
    let listed: Option<Value> = client.find(&at).await.context("listing Gateways")?;
    let items = listed.map(|mut list| list["items"].take());
    Ok(items.iter().filter_map(Value::as_array).flatten().filter_map(Shown::of).collect())
}

/// `within` is the namespace that was looked at; `None` if all were.
fn show(shown: &[Shown], within: Option<&str>, output: Format) -> anyhow::Result<()> {
    if output == Format::Json {
        return output::json(&shown);
    }
    if shown.is_empty() {
        return output::line(&match within {
            Some(namespace) => format!(
                "no waypoints in namespace {namespace}; -A lists those of all, and `leno waypoint apply -n {namespace}` makes one"
            ),
            None => "no waypoints; `leno waypoint apply -n NAMESPACE` makes one".to_owned(),
        });
    }
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|it| {
            let (namespace, name, traffic) = (it.namespace.clone(), it.name.clone(), it.traffic.clone());
            vec![namespace, name, traffic, word(it.programmed), word(it.bypass), it.message.clone()]
        })
        .collect();
    output::line(&output::table(&["NAMESPACE", "NAME", "FOR", "PROGRAMMED", "BYPASS", "MESSAGE"], &rows))
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let (client, namespace) = login(&args.place).await?;
    let within = (!args.all_namespaces).then_some(&*namespace);
    show(&waypoints(&client, within).await?, within, args.output.output)
}

async fn status(args: WaypointStatusArgs) -> anyhow::Result<ExitCode> {
    let (client, namespace) = login(&args.place).await?;
    let deadline = Instant::now() + args.wait.timeout;
    loop {
        let mut shown = waypoints(&client, Some(&namespace)).await?;
        if let Some(name) = &args.name {
            shown.retain(|it| it.name == *name);
            if shown.is_empty() {
                bail!("there is no waypoint {namespace}/{name}; `leno waypoint list -A` lists all");
            }
        }
        let sound = shown.iter().all(|it| it.programmed);
        if sound || !args.wait.wait || Instant::now() >= deadline {
            show(&shown, Some(&namespace), args.output.output)?;
            return Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        sleep(INTERVAL).await;
    }
}

async fn wait(client: &Client, namespace: &str, name: &str, deadline: Instant) -> anyhow::Result<()> {
    loop {
        let found: Value = client.get(&path(namespace, name)).await.context("looking at the Gateway")?;
        let shown = Shown::of(&found);
        if shown.as_ref().is_some_and(|it| it.programmed) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let why = shown.map_or_else(|| "its class is another controller's".to_owned(), |it| it.message);
            bail!("Gateway {namespace}/{name} is not programmed: {why}");
        }
        sleep(INTERVAL).await;
    }
}

async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let (client, namespace) = login(&args.place).await?;
    let there = waypoints(&client, Some(&namespace)).await?;
    let names = if args.all { there.iter().map(|it| it.name.clone()).collect() } else { args.names };
    if let Some(missing) = names.iter().find(|name| !there.iter().any(|it| it.name == **name)) {
        bail!(
            "there is no waypoint {namespace}/{missing}; `leno waypoint list -n {namespace}` lists those that there are"
        );
    }
    for name in &names {
        client.delete(&path(&namespace, name)).await.with_context(|| format!("deleting the Gateway {name}"))?;
        output::line(&format!("Gateway {namespace}/{name} deleted"))?;
    }
    let around: Option<Value> = client.find(&format!("/api/v1/namespaces/{namespace}")).await?;
    let used = around.as_ref().and_then(|it| it["metadata"]["labels"][USE_WAYPOINT].as_str());
    if let Some(used) = used.filter(|used| names.iter().any(|name| name == used)) {
        eprintln!(
            "namespace {namespace} still names {used}, so what is in it is refused: kubectl label namespace {namespace} {USE_WAYPOINT}-"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waypoint_is_shown_as_the_control_plane_left_it() {
        let mut object = gateway("shop", "gate", Some(Traffic::All));
        let shown = Shown::of(&object).expect("a waypoint");
        assert_eq!((shown.traffic.as_str(), shown.programmed), ("all", false));
        assert!(shown.message.contains("no control plane"));
        object["metadata"]["generation"] = 2.into();
        let condition = |generation: u32| {
            json!({"conditions": [
                {"type": "Programmed", "status": "True", "message": "1 of 1", "observedGeneration": generation}
            ]})
        };
        object["status"] = condition(1);
        assert!(!Shown::of(&object).expect("a waypoint").programmed, "that was about an earlier version");
        object["status"] = condition(2);
        assert!(Shown::of(&object).expect("a waypoint").programmed);
        object["spec"]["gatewayClassName"] = "nginx".into();
        assert_eq!(Shown::of(&object), None);
    }
}
