//! Every command and flag, once: parsing, help and shell completion come from here.

mod cluster;
mod config;
mod debug;
mod observe;
mod target;
pub(crate) mod waypoint;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leno_control::explained::Asked;
use leno_local::Publish;
use leno_local::names::{DEFAULT_STAGE, StageName};

use crate::complete;
use crate::control_args::ControlArgs;
use crate::durations;
use crate::sample::SampleCommand;

pub(crate) use cluster::{
    CheckArgs, ClusterArgs, ClusterCommand, ClusterUpgradeArgs, EnrolArgs, InstallArgs, ObjectFormat, StatusArgs,
    UninstallArgs, ValueArgs, WaitArgs,
};
pub(crate) use config::{ConfigArgs, ConfigPart};
pub(crate) use debug::{CollectArgs, DebugCommand};
#[cfg(test)]
pub(crate) use observe::VerdictArg;
pub(crate) use observe::{FilterArgs, MetricsArgs, ObserveArgs};
pub(crate) use target::{InstalledArgs, TargetArgs};

/// The command line. `N` are the settings of the node proxy, which its own crate declares.
#[derive(Debug, Parser)]
#[command(
    name = "leno",
    version,
    about = "An ambient service mesh in one binary",
    long_about = "An ambient service mesh in one binary: it encrypts, authorises and shows the traffic between \
                  programs, with no sidecars and no change to the programs. On one machine it plays Kubernetes \
                  manifests by itself.",
    after_help = "Examples:\n  \
                  leno demo                          see it work, in under a minute\n  \
                  leno up -f samples/emojivoto       run the sample application\n  \
                  leno ps                            what runs where, and what is in the mesh\n  \
                  leno explain emojivoto/snoop emojivoto/voting-svc:8080\n\n\
                  Exit status: 0 done, 1 failed, 2 wrong usage, 130 ended early by a signal. `leno exec` exits as its command does."
)]
pub(crate) struct Cli<N: Args, W: Args> {
    #[command(subcommand)]
    pub(crate) command: Command<N, W>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command<N: Args, W: Args> {
    /// Show the mesh at work on a sample application, and check every claim it makes
    #[command(after_help = "Examples:\n  \
        sudo leno demo\n  \
        sudo leno demo --duration 60          longer phases\n  \
        sudo leno demo --keep                 leave it running; then leno ps --name demo\n  \
        sudo leno demo -o json | jq .phases")]
    Demo(DemoArgs),

    /// Run manifests on this machine: nodes and pods as network namespaces, containers as processes
    #[command(after_help = "Examples:\n  \
        sudo leno up -f samples/emojivoto\n  \
        sudo leno up -f app.yaml -f policies/ --nodes 3\n  \
        sudo leno up -f app.yaml --detach\n  \
        sudo leno up -f app.yaml --detach --timeout 5m --on-timeout stop\n  \
        sudo leno up -f samples/emojivoto --publish 8080=emojivoto/web-svc:8080\n  \
        sudo leno up -f app.yaml --node-proxy node-2=/usr/local/bin/ztunnel\n\n\
        Edits to the files take effect while it runs. Ctrl-C stops it and removes what it made; a second one kills what is \
        slow to end, and cuts nothing else short.\n\n\
        Exit status: 0 ended by `leno down`, or with --detach all is ready; 1 it could not start or was not ready in time; \
        2 wrong usage; 130 ended by Ctrl-C or another signal.")]
    Up(UpArgs),

    /// Stop what `leno up` runs and remove what it made, also after a crash
    #[command(after_help = "Examples:\n  sudo leno down\n  sudo leno down --name test")]
    Down(StageArgs),

    /// List nodes and pods, or all stages
    #[command(after_help = "Examples:\n  \
        leno ps\n  \
        leno ps -w                     again and again, as things change\n  \
        leno ps --stages               what else runs on this machine\n  \
        leno ps -o json | jq '.pods[] | select(.in_mesh)'")]
    Ps(PsArgs),

    /// Run a command in a pod
    #[command(after_help = "Examples:\n  \
        sudo leno exec emojivoto/web -- curl -s http://emoji-svc:8080\n  \
        sudo leno exec emojivoto/web -- sh\n\n\
        POD is a pod, or a Deployment for any one of its pods. Exit status: the command's own, 128 + N if signal N ended \
        it, 127 if there is no such program, 126 if it can't be run.")]
    Exec(ExecArgs),

    /// Set how many pods a Deployment has
    #[command(after_help = "Examples:\n  sudo leno scale emojivoto/voting 3\n  sudo leno scale emojivoto/snoop 0")]
    Scale(ScaleArgs),

    /// Bring a cluster's installation to this program's version; or exchange the proxies of a stage's nodes
    #[command(after_help = "Examples:\n  \
        leno upgrade --wait                    a cluster: this program's version, with the values of the installation\n  \
        leno upgrade --set node.drainSeconds=120\n  \
        sudo leno upgrade --node-proxy node-1=/usr/local/bin/leno-1.1\n  \
        sudo leno upgrade --node-proxy node-1=./ztunnel --node-proxy node-2=./ztunnel\n\n\
        With --node-proxy a stage on this machine is meant, else a cluster, as with `leno install`. \
        One node after the other. The proxy that runs drains, and takes what is new until the other one does. If that is not \
        ready within three seconds, the program that ran before is started again, nothing is lost, and the exit status is 1.")]
    Upgrade(UpgradeArgs),

    /// Print what a stage's pods, proxies or the stage itself wrote, or what a cluster's agents, proxies and control planes did
    #[command(after_help = concat!("Examples:\n  \
        leno logs emojivoto/vote-bot\n  \
        leno logs -f emojivoto/web\n  \
        leno logs shop/web -c sidecar  one of its containers\n  \
        leno logs --node node-1        the node's proxy, with its access log\n  \
        leno logs                      the stage: every start, end, restart, scale, join and leave, with its time\n  \
        leno logs --since 5m --tail 20\n  \
        leno logs --context prod -f    a cluster: all parts of Leno, merged by time\n  \
        leno logs --context prod --node n1\n\n\
        The logs of a stage whose supervisor was killed stay readable until the next `leno up` or `leno down`.\n\n", target::rule!()))]
    Logs(LogsArgs),

    /// Tell which way a connection would take and which policy would allow or deny it
    #[command(after_help = concat!("Examples:\n  \
        leno explain emojivoto/web emojivoto/voting-svc:8080\n  \
        leno explain emojivoto/snoop emojivoto/voting-svc:8080 -o json\n  \
        leno explain --context prod shop/web shop/db:5432\n  \
        leno explain shop/web shop/cart:80 --method POST --path /checkout --header x-user=ann\n\n\
        With --method, --path or --header it tells what becomes of a request: which policies, rule of a route and endpoints \
        decide at the waypoint.\n\n\
        Exit status 0 also when the answer is \"denied\".\n\n", target::rule!()))]
    Explain(ExplainArgs),

    /// Show who talks to whom: connections that are open or ended lately, as the node proxies see them
    #[command(after_help = concat!("Examples:\n  \
        leno observe\n  \
        leno observe -f --namespace emojivoto --verdict denied\n  \
        leno observe --to emojivoto/voting-svc --since 30s -o json | jq '.connections[].source'\n  \
        leno observe --map             one line for each pair, with rates\n  \
        leno observe --context prod -n shop -f\n\n\
        A connection between two pods of the mesh is one row, which both nodes' proxies tell of. With -f, one that lasts is \
        shown when it is a second old, and each at its end; -o json then prints one object a line.\n\n", target::rule!()))]
    Observe(ObserveArgs),

    /// Print the metrics of a node's proxy, of all, or of the control plane
    #[command(after_help = concat!("Examples:\n  \
        leno metrics node-1\n  \
        leno metrics control           the control plane's\n  \
        leno metrics --metric istio_tcp_connections_failed\n  \
        leno metrics -o json | jq '.nodes[].metrics[] | select(.name == \"istio_build\")'\n\n\
        They are Istio's, in the Prometheus text format. A scraper reads them at port 15020 of each node and of the control \
        plane, /metrics.\n\n", target::rule!()))]
    Metrics(MetricsArgs),

    /// Show what runs, and of each proxy whether it is in sync, its version, when its certificates end and what it carries
    #[command(after_help = concat!(
        "Examples:\n  leno status\n  leno status --wait\n  leno status -o json | jq .nodes\n\n\
         PODS are those in the mesh; PENDING ones are to be in it and are not yet. IN SYNC: the proxy has accepted all that the \
         control plane has published. CERTIFICATES END: when the first one does; each is renewed at half its life. DRAINING: \
         proxies that have been replaced, and the connections that they still wait for.\n\n",
        target::rule!()
    ))]
    Status(StatusArgs),

    /// Print what the node proxies believe: workloads, services, policies, certificates
    #[command(after_help = concat!("Examples:\n  \
        leno config workloads node-1\n  \
        leno config certificates       of all nodes, each with its end\n  \
        leno config policies --context prod\n  \
        leno config all node-1 -o json | jq .nodes[0].config\n\n\
        With -o json it is the proxy's own /config_dump, as `istioctl ztunnel-config` reads it.\n\n", target::rule!()))]
    Config(ConfigArgs),

    /// Find out what is wrong
    #[command(after_help = "Examples:\n  leno debug collect -o report.tar.gz")]
    Debug {
        #[command(subcommand)]
        command: DebugCommand,
    },

    #[command(flatten)]
    Cluster(ClusterCommand),

    /// Run the proxy of one node
    #[command(after_help = "Examples:\n  \
        NODE_NAME=node-1 XDS_ADDRESS=https://10.0.0.1:15012 leno node\n  \
        leno node --node node-1 --xds-address https://10.0.0.1:15012 --xds-root-ca root-cert.pem\n\n\
        The environment variables are ztunnel's: what starts a ztunnel can start this.")]
    Node(N),

    /// Run a waypoint: the proxy that looks at the requests of services
    #[command(after_help = "Examples:\n  \
        NODE_NAME=node-1 POD_NAME=waypoint-1 POD_NAMESPACE=shop SERVICE_ACCOUNT=waypoint \\\n    \
        XDS_ADDRESS=https://10.0.0.1:15012 leno waypoint\n  \
        leno waypoint apply -n shop --enroll-namespace --wait\n\n\
        With a further word it makes, lists, shows or deletes the waypoints of a cluster. \
        `leno up` and a cluster's control plane start one for each Gateway of class leno-waypoint.")]
    Waypoint(waypoint::WaypointArgs<W>),

    /// Run the control plane by itself, with objects from files
    #[command(after_help = "Examples:\n  \
        leno control -f mesh/ --ca-dir /var/lib/leno/ca --tokens tokens\n  \
        leno control -f mesh/ --ca-dir ca --tokens tokens --listen 10.0.0.1:15012 --server-name 10.0.0.1\n\n\
        Each line of the token file lets one node proxy in: TOKEN NAMESPACE/SERVICE_ACCOUNT [NODE]")]
    Control(ControlArgs),

    /// Keep the pods of a cluster's node in the mesh, and install its CNI plugin
    #[command(after_help = "Examples:\n  \
        leno agent --node \"$(hostname)\" --kubeconfig admin.conf\n  \
        leno agent --node \"$(hostname)\" --remove      take from a node what agents left there\n\n\
        `leno install` runs it as a DaemonSet. It needs root, the node's network and processes, and the node's directories of \
        CNI configurations and plugins.")]
    Agent(leno_agent::Config),

    /// Measure Leno beside no mesh, bare relays and other meshes, on this machine
    #[command(after_help = "Examples:\n  \
        leno lab list\n  \
        sudo leno lab run throughput --quick\n  \
        sudo leno lab run latency --subject none --subject leno --report latency.html")]
    Lab {
        #[command(subcommand)]
        command: leno_lab::cli_args::LabCommand,
    },

    /// Run one load of the lab: a JSON text says which, JSON lines on standard output what it found
    #[command(hide = true)]
    LabLoad {
        /// A `LoadSpec`
        spec: String,
    },

    /// Run the server that the lab's loads need
    #[command(hide = true)]
    LabServer {
        /// A `ServerSpec`
        spec: String,
    },

    /// Run the control plane that the lab feeds: JSON lines on standard input
    #[command(hide = true)]
    LabControl,

    /// Run one part of the sample application
    #[command(hide = true)]
    Sample {
        #[command(subcommand)]
        part: SampleCommand,
    },

    /// Print the version
    #[command(after_help = "Examples:\n  leno version\n  leno version -o json")]
    Version(OutputArgs),

    /// Print a completion script for a shell; it also knows the names of what runs
    #[command(after_help = "Examples:\n  \
        source <(leno completion bash)\n  \
        leno completion fish > ~/.config/fish/completions/leno.fish")]
    Completion {
        /// Shell to write it for
        shell: clap_complete::Shell,
    },

    /// Print a manual page
    #[command(after_help = "Examples:\n  \
        leno man | man -l -\n  \
        leno man up | man -l -\n  \
        sudo leno man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Command that it is about; without it, the whole program
    pub(crate) command: Vec<String>,

    /// Write the pages of all commands into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    #[value(alias = "table")]
    Text,
    /// One JSON object, with keys that stay
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct StageArgs {
    /// Which stage, where several run on one machine
    #[arg(long, env = "LENO_STAGE", default_value = DEFAULT_STAGE, value_parser = StageName::new, add = complete::stages())]
    pub(crate) name: StageName,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// On a stage: program to run as the proxy of a node from now on
    #[arg(
        long, value_name = "NODE=PATH", value_parser = node_proxy,
        conflicts_with_all = ["profile", "sets", "files", "reset_values", "skip_crds", "wait", "kubeconfig", "context", "namespace"]
    )]
    pub(crate) node_proxy: Vec<(String, PathBuf)>,

    #[command(flatten)]
    pub(crate) stage: StageArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterUpgradeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Seconds of measured traffic, shared by the phases
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(4..=3600))]
    pub(crate) duration: u64,

    /// Leave the sample running, for a look around; `leno down --name demo` ends it
    #[arg(long)]
    pub(crate) keep: bool,

    /// Name of its stage, so that it can run beside others
    #[arg(long, default_value = "demo", value_parser = StageName::new)]
    pub(crate) name: StageName,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What becomes of a stage that is not ready in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// Stop it and remove what it made
    Stop,
    /// Let it go on, for a look at what is wrong
    Keep,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Manifest, or directory of *.yaml, or - for standard input; may be given again
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// How many nodes, called node-1, node-2, …
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: u16,

    /// Proxy of a node instead of Leno's own, for example a ztunnel; may be given again
    #[arg(long, value_name = "NODE=PATH", value_parser = node_proxy)]
    pub(crate) node_proxy: Vec<(String, PathBuf)>,

    /// Let a port of this machine lead to a service, as a client outside the mesh; ADDRESS is 127.0.0.1 unless given, PORT 0 is
    /// any free one; may be given again
    #[arg(long, value_name = "[ADDRESS:]PORT=NS/SVC:PORT")]
    pub(crate) publish: Vec<Publish>,

    /// Return as soon as everything is ready and leave it running
    #[arg(long)]
    pub(crate) detach: bool,

    /// Longest to wait until all is ready, as in 90s or 5m; 0 for no limit [default: 1m with --detach, no limit without]
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub(crate) timeout: Option<Duration>,

    /// What becomes of a stage that is not ready by then; the exit status is 1 either way [default: keep with --detach, stop
    /// without]
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) on_timeout: Option<OnTimeout>,

    #[command(flatten)]
    pub(crate) stage: StageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Go on, and show each change: in place on a terminal, else a line for each, or with -o json a whole listing a line
    #[arg(short, long, conflicts_with = "stages")]
    pub(crate) watch: bool,

    /// List the stages of this user instead, also those that left something behind
    #[arg(long)]
    pub(crate) stages: bool,

    #[command(flatten)]
    pub(crate) stage: StageArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The pod, or a Deployment for any one of its pods
    #[arg(value_name = "NS/POD", value_parser = object, add = complete::pods())]
    pub(crate) pod: ObjectName,

    /// Command and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,

    #[command(flatten)]
    pub(crate) stage: StageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The Deployment
    #[arg(value_name = "NS/DEPLOYMENT", value_parser = object, add = complete::deployments())]
    pub(crate) deployment: ObjectName,

    /// Pods it shall have
    #[arg(value_parser = clap::value_parser!(u32).range(..=1000))]
    pub(crate) replicas: u32,

    #[command(flatten)]
    pub(crate) stage: StageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The pod, or on a stage a Deployment for any one of its pods; without it, the stage's own log, or those of Leno's parts in a
    /// cluster
    #[arg(value_name = "NS/POD", value_parser = object, add = complete::pods())]
    pub(crate) pod: Option<ObjectName>,

    /// Proxy of this node; in a cluster also its agent
    #[arg(long, conflicts_with = "pod", add = complete::nodes())]
    pub(crate) node: Option<String>,

    /// Container of the pod; without it, all, and each line says whose it is
    #[arg(short, long, requires = "pod")]
    pub(crate) container: Option<String>,

    /// Go on with what is written from now on
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Only so many lines at the end of what there is; with -f of a cluster, of each part
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<usize>,

    /// Only what was written within this time, as in 30s or 5m
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub(crate) since: Option<Duration>,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Who connects: a pod, or one of a Service, Deployment, StatefulSet or Job
    #[arg(value_name = "SRC", value_parser = object, add = complete::pods())]
    pub(crate) source: ObjectName,

    /// What it connects to: NAMESPACE/NAME, a DNS name or an IP address, with a port by number or name; /udp after it for UDP
    #[arg(value_name = "DST:PORT[/udp]", value_parser = destination, add = complete::services())]
    pub(crate) destination: String,

    #[command(flatten)]
    pub(crate) request: RequestArgs,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Default, Args)]
pub(crate) struct RequestArgs {
    /// Ask about a request with this method (GET unless given)
    #[arg(long, value_name = "METHOD", value_parser = method)]
    pub(crate) method: Option<String>,

    /// Ask about a request for this path, with a query or without (/ unless given)
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub(crate) path: Option<String>,

    /// Ask about a request with this header, once for each; host=NAME asks for another host than the Service's
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
}

impl ExplainArgs {
    /// The request that is asked about; `None` if it is only a connection.
    pub(crate) fn asked(&self) -> Option<Asked> {
        let RequestArgs { method, path, header } = &self.request;
        if method.is_none() && path.is_none() && header.is_empty() {
            return None;
        }
        Some(Asked {
            method: method.clone().unwrap_or_else(|| "GET".to_owned()),
            path: path.clone().unwrap_or_else(|| "/".to_owned()),
            headers: header.clone(),
        })
    }
}

fn method(text: &str) -> Result<String, String> {
    match http::Method::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            Err("expected a method, such as GET: letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 §5.6.2)".to_owned())
        }
    }
}

fn path(text: &str) -> Result<String, String> {
    match text.starts_with('/') || text == "*" {
        true => Ok(text.to_owned()),
        false => Err("expected a path that begins with /".to_owned()),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

fn object(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        // `NAMESPACE/deploy/NAME` is what people of kubectl try.
        Some((namespace, rest)) if !namespace.is_empty() && !rest.trim_matches('/').is_empty() => {
            let name = rest.trim_matches('/').rsplit('/').next().unwrap_or_default();
            Err(format!("write NAMESPACE/NAME, for example {namespace}/{name}"))
        }
        _ => Err(format!("write NAMESPACE/NAME, for example default/{}", text.trim_matches('/'))),
    }
}

/// Left as text: names are looked up by the stage, which knows what there is.
fn destination(text: &str) -> Result<String, String> {
    // Whether there is such a name, and whether it needs a port, the stage knows.
    let number = text.trim_end_matches("/udp").rsplit_once(':').and_then(|(_, port)| port.parse::<u32>().ok());
    match number {
        Some(0 | 65536..) => Err("a port is from 1 to 65535".to_owned()),
        _ if text.is_empty() || text.contains(char::is_whitespace) => Err("write NAMESPACE/NAME:PORT".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn node_proxy(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((node, path)) if !node.is_empty() && !path.is_empty() => Ok((node.to_owned(), PathBuf::from(path))),
        _ => Err("write NODE=PATH, for example node-2=/usr/local/bin/ztunnel".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(Debug, Args)]
    struct NoSettings {}

    fn parse(line: &str) -> Result<Cli<NoSettings, NoSettings>, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::<NoSettings, NoSettings>::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        for command in
            Cli::<NoSettings, NoSettings>::command().get_subcommands().filter(|command| !command.is_hide_set())
        {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has no examples", command.get_name());
        }
    }

    #[test]
    fn lines_that_parse() {
        for line in [
            "leno up -f a.yaml -f b/ --nodes 3 --node-proxy node-2=/bin/ztunnel --detach --name x",
            "leno up -f a --timeout 90s --on-timeout keep",
            "leno up -f a --publish 8080=shop/web:80 --publish [::1]:0=shop/db:5432",
            "leno man",
            "leno man lab run",
            "leno man --dir x",
            "leno ps -w",
            "leno upgrade --node-proxy node-1=/bin/ztunnel --name x -o json",
            "leno upgrade --wait --set control.replicas=2 --kubeconfig k -n mesh -o json",
            "leno install --profile ha --set control.replicas=3 -f values.yaml --wait --timeout 90s",
            "leno install -o yaml",
            "leno uninstall --purge",
            "leno enrol shop bank --wait",
            "leno enroll shop",
            "leno unenrol shop",
            "leno check --pre -o json",
            "leno status --wait --context c",
            "leno ps --stages -o json",
            "leno down",
            "leno ps -o json",
            "leno exec ns/pod -- curl -s http://a",
            "leno scale ns/web 0",
            "leno logs -f ns/pod",
            "leno logs --node node-1",
            "leno logs",
            "leno logs --tail 20 --since 5m -f",
            "leno explain ns/a ns/b:80 --output json",
            "leno observe -f --pod ns/a --namespace ns --verdict denied --to ns/b --since 5m --service ns/c --port 80 -o table",
            "leno observe --map --window 5 --node node-1 --encrypted false -o json",
            "leno metrics",
            "leno metrics node-1 --metric istio_tcp -o json",
            "leno metrics control --kubeconfig k --context c -n mesh",
            "leno observe --kubeconfig k -n shop -f",
            "leno explain --context c shop/a shop/b:80",
            "leno logs --context c --node n1 --tail 5",
            "leno config certificates node-1 -o json",
            "leno config all --context c -n mesh",
            "leno debug collect -o x.tar.gz --since 30m --node n1 --node n2",
            "leno demo --duration 9 --keep -o json",
            "leno node",
            "leno version",
            "leno completion bash",
            "leno sample web --port 1",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn wrong_lines_are_usage_errors() {
        for line in [
            "leno",
            "leno up",
            "leno up -f a --nodes 0",
            "leno up -f a --node-proxy node-2",
            "leno upgrade --node-proxy node-1=/bin/ztunnel --wait",
            "leno upgrade --node-proxy node-2",
            "leno install --profile huge",
            "leno enrol",
            "leno check --timeout",
            "leno up -f a --name ../x",
            "leno up -f a --timeout soon",
            "leno up -f a --on-timeout wait",
            "leno up -f a --publish 8080",
            "leno up -f a --publish 8080=web:80",
            "leno ps -w --stages",
            "leno man up --dir x",
            "leno demo --name Demo",
            "leno exec ns/pod",
            "leno exec pod -- true",
            "leno exec a/b/c -- true",
            "leno explain ns/a",
            "leno explain ns/a ns/b:0",
            "leno explain ns/a ns/b:70000/udp",
            "leno explain ns/a ns/b:80 --method G@T",
            "leno explain ns/a ns/b:80 --method ",
            "leno explain ns/a ns/b:80 --path x",
            "leno ps -o yaml",
            "leno scale ns/web -1",
            "leno logs ns/pod --node node-1",
            "leno observe --verdict maybe",
            "leno observe --to voting",
            "leno observe --window 5",
            "leno config",
            "leno config node-1",
            "leno logs --tail -1",
            "leno logs --since yesterday",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_method_is_one_that_a_request_can_have() {
        for method in ["G T", "GET\r\n", "", "GÉT"] {
            let words = ["leno", "explain", "ns/a", "ns/b:80", "--method", method];
            let error = Cli::<NoSettings, NoSettings>::try_parse_from(words).expect_err(method);
            assert!(error.to_string().contains("expected a method"), "{error}");
        }
        parse("leno explain ns/a ns/b:80 --method M-SEARCH").expect("a method");
    }

    /// The command in a line of a document or help text, without what a shell would take away.
    fn example(line: &str) -> Option<String> {
        let line = line.trim().trim_start_matches("$ ").replace("cargo run --release -- ", "leno ");
        let words: Vec<_> = line
            .split(['|', '#', '>'])
            .next()?
            // Two spaces set a remark apart.
            .split("  ")
            .next()?
            .split(' ')
            .skip_while(|word| *word == "sudo" || word.contains('='))
            .filter(|word| !word.is_empty())
            .collect();
        (words.first() == Some(&"leno") && words.len() > 1).then(|| words.join(" "))
    }

    #[test]
    fn examples_are_valid() {
        let mut text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
        let command = Cli::<NoSettings, NoSettings>::command();
        for help in command.get_subcommands().chain([&command]).filter_map(|command| command.get_after_help()) {
            text.push_str(&help.to_string());
            text.push('\n');
        }
        let examples: Vec<_> = text.lines().filter_map(example).collect();
        assert!(examples.len() > 25, "{examples:?}");
        for line in examples.iter().filter(|line| !line.starts_with("leno node")) {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn names() {
        assert_eq!(object("a/b").map(|name| name.to_string()), Ok("a/b".to_owned()));
        assert!(object("a").is_err_and(|hint| hint.contains("default/a")));
        assert!(object("shop/deploy/web").is_err_and(|hint| hint.contains("example shop/web")));
        assert!(object("shop/").is_err_and(|hint| hint.contains("default/shop")));
        for good in ["a/b:80", "10.0.0.1:80", "[::1]:80"] {
            assert_eq!(destination(good), Ok(good.to_owned()));
        }
    }
}
