//! etcd, the API server, the controllers and the scheduler: programs on the host.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};

use super::build;
use super::certificates::Identities;
use super::cgroups::Cgroups;
use super::layout::Layout;
use super::plan::{DNS_SERVICE, HOST_4, Plan};
use super::process::Daemon;
use super::waiting::Wait;

/// Beside the usual port, in case there is an etcd here already.
const ETCD: &str = "http://127.0.0.1:12379";
const ETCD_PEERS: &str = "http://127.0.0.1:12380";

/// In the order in which they are started.
pub(crate) const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// The ports that they listen on, and who does.
const PORTS: [(u16, &str); 5] =
    [(6443, "the API server"), (12379, "etcd"), (12380, "etcd"), (10257, "the controllers"), (10259, "the scheduler")];

/// Starts them, and waits until the API server answers.
pub(crate) fn start(layout: &Layout, cgroups: &Cgroups, plan: &Plan) -> Result<Vec<Daemon>> {
    refuse_taken_ports()?;
    let identities = Identities::of(layout);
    fs::create_dir_all(layout.etcd()).with_context(|| format!("creating {}", layout.etcd().display()))?;
    let mut daemons = Vec::new();
    let start = |program: &str, arguments: Vec<String>| {
        Daemon::start(layout, &cgroups.daemon(program), &layout.bin().join(program), &arguments)
    };
    daemons.push(start("etcd", etcd(&layout.etcd()))?);
    daemons.push(start("kube-apiserver", api_server(&identities, plan))?);
    let wait = Wait::begin("the API server", Duration::from_secs(300));
    wait.until_succeeds(&mut checks(&mut daemons), || {
        let mut command = kubectl(layout);
        command.args(["get", "--raw", "/readyz"]);
        command
    })?;
    daemons.push(start("kube-controller-manager", controllers(&identities, plan))?);
    daemons.push(start("kube-scheduler", scheduler(&identities))?);
    Ok(daemons)
}

/// Kills one of them and starts it again some time later. Those that ask it find nobody meanwhile.
pub(crate) fn restart(layout: &Layout, cgroups: &Cgroups, plan: &Plan, program: &str, away: Duration) -> Result<()> {
    let identities = Identities::of(layout);
    let arguments = match program {
        "etcd" => etcd(&layout.etcd()),
        "kube-apiserver" => api_server(&identities, plan),
        "kube-controller-manager" => controllers(&identities, plan),
        "kube-scheduler" => scheduler(&identities),
        _ => bail!("{program:?} is none of {}", PROGRAMS.join(", ")),
    };
    let group = cgroups.daemon(program);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !cgroups.processes(program).is_empty() {
        // It may have ended meanwhile.
        for pid in cgroups.processes(program) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if Instant::now() > deadline {
            bail!("{program} does not end although it was killed");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(away);
    let mut daemons = vec![Daemon::start(layout, &group, &layout.bin().join(program), &arguments)?];
    Wait::begin("the API server", Duration::from_secs(120)).until_succeeds(&mut checks(&mut daemons), || {
        let mut command = kubectl(layout);
        command.args(["get", "--raw", "/readyz"]);
        command
    })
}

/// A program whose port is taken says so only in its log, some after a while.
fn refuse_taken_ports() -> Result<()> {
    for (port, who) in PORTS {
        if let Err(error) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            bail!(
                "port {port}, which {who} needs, can't be had ({error}); `ss -ltnp 'sport = :{port}'` shows who listens there"
            );
        }
    }
    Ok(())
}

/// What is looked at while something is waited for.
pub(crate) fn checks(daemons: &mut [Daemon]) -> impl FnMut() -> Result<()> {
    move || daemons.iter_mut().try_for_each(Daemon::check)
}

/// Installs what a cluster has from the beginning: DNS, and what the nodes' programs may do.
pub(crate) fn furnish(layout: &Layout, plan: &Plan) -> Result<()> {
    let families = if plan.dual() { "[IPv4, IPv6]" } else { "[IPv4]" };
    let policy = if plan.dual() { "RequireDualStack" } else { "SingleStack" };
    let text = include_str!("../../cluster/furniture.yaml")
        .replace("{dns}", &DNS_SERVICE.to_string())
        .replace("{image}", build::COREDNS)
        .replace("{families}", families)
        .replace("{policy}", policy);
    apply(layout, &text)
}

fn apply(layout: &Layout, manifests: &str) -> Result<()> {
    let mut command = kubectl(layout);
    command.args(["apply", "--server-side", "--filename", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting kubectl")?;
    let mut input = child.stdin.take().context("kubectl has no input")?;
    input.write_all(manifests.as_bytes()).context("writing to kubectl")?;
    drop(input);
    let output = child.wait_with_output().context("waiting for kubectl")?;
    if !output.status.success() {
        bail!("kubectl apply: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// kubectl, as the cluster's administrator.
pub(crate) fn kubectl(layout: &Layout) -> Command {
    let mut command = build::command(layout, "kubectl");
    command.arg("--kubeconfig").arg(Identities::of(layout).kubeconfig("admin"));
    command
}

fn etcd(data: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", data.display()),
        // The cluster is thrown away with the machine it runs on; waiting for a disk would be for nothing.
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
        format!("--initial-cluster=default={ETCD_PEERS}"),
        "--log-level=warn".to_owned(),
    ]
}

fn api_server(identities: &Identities, plan: &Plan) -> Vec<String> {
    vec![
        format!("--etcd-servers={ETCD}"),
        format!("--advertise-address={HOST_4}"),
        "--bind-address=0.0.0.0".to_owned(),
        "--secure-port=6443".to_owned(),
        format!("--tls-cert-file={}", identities.certificate("apiserver")),
        format!("--tls-private-key-file={}", identities.key("apiserver")),
        format!("--client-ca-file={}", identities.certificate("ca")),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--service-cluster-ip-range={}", plan.service_ranges()),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", identities.accounts_public_key()),
        format!("--service-account-signing-key-file={}", identities.key("service-accounts")),
        format!("--kubelet-client-certificate={}", identities.certificate("apiserver-kubelet")),
        format!("--kubelet-client-key={}", identities.key("apiserver-kubelet")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--requestheader-client-ca-file={}", identities.certificate("front-proxy-ca")),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", identities.certificate("front-proxy")),
        format!("--proxy-client-key-file={}", identities.key("front-proxy")),
        // Webhooks are called at their pods' addresses: no kube-proxy runs on the host.
        "--enable-aggregator-routing=true".to_owned(),
    ]
}

fn controllers(identities: &Identities, plan: &Plan) -> Vec<String> {
    let mut arguments = client(&identities.kubeconfig("controller-manager"));
    arguments.extend([
        "--use-service-account-credentials".to_owned(),
        format!("--service-account-private-key-file={}", identities.key("service-accounts")),
        format!("--root-ca-file={}", identities.certificate("ca")),
        format!("--cluster-signing-cert-file={}", identities.certificate("ca")),
        format!("--cluster-signing-key-file={}", identities.key("ca")),
        format!("--service-cluster-ip-range={}", plan.service_ranges()),
    ]);
    arguments
}

fn scheduler(identities: &Identities) -> Vec<String> {
    client(&identities.kubeconfig("scheduler"))
}

/// What controllers and scheduler have in common. There is one of each, and their usual limits on calls would be what a test
/// with many pods measures.
fn client(kubeconfig: &str) -> Vec<String> {
    let mut arguments: Vec<_> = ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"]
        .map(|flag| format!("{flag}={kubeconfig}"))
        .into();
    arguments.extend(
        ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", "--bind-address=127.0.0.1"]
            .map(str::to_owned),
    );
    arguments
}
