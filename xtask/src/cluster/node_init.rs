//! The first process of a node: it gives the node files of its own, starts containerd, kube-proxy and the kubelet, starts
//! again what ends, and reaps what others leave behind. When it ends, the kernel ends everything in the node.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::certificates::Identities;
use super::host::ip;
use super::layout::Layout;
use super::node::{CONNECTED, Settings};
use super::node_config::{self, CONTAINERD_SOCKET};
use super::plan::{HOST_4, HOST_6};
use super::programs;
use super::telling::say;
use crate::whole_file;

/// Where a node sees the cache.
const CACHE: &str = "/run/leno-cluster";
/// How long a program that ended is left alone before it is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The command `init`.
pub(crate) fn run(file: &Path) -> Result<()> {
    let settings = Settings::read(file)?;
    nix::unistd::sethostname(settings.node.name()).context("setting the node's name")?;
    own_files(&settings)?;
    let layout = Layout::of(Path::new(CACHE));
    configure(&layout, &settings)?;
    let mut word = String::new();
    std::io::stdin().read_to_string(&mut word).context("waiting for the cable")?;
    if word != CONNECTED {
        bail!("what started this node has ended");
    }
    own_network(&settings)?;
    let mut programs = Programs { layout, settings, running: Vec::new() };
    programs.start(Program::Containerd)?;
    await_containerd()?;
    programs.import_images()?;
    programs.start(Program::KubeProxy)?;
    programs.start(Program::Kubelet)?;
    programs.keep_running()
}

/// Gives the node a `/run`, `/etc`, `/opt`, `/var/lib` and `/var/log` that neither the host nor another node sees: sockets,
/// CNI configuration, plugins and state lie there. All of it vanishes with the node's mount namespace.
fn own_files(settings: &Settings) -> Result<()> {
    let here = Layout::of(&settings.cache).node(settings.node);
    mounted::<&str>(None, "/", None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    let run = here.join("run");
    make_directory(&run)?;
    mounted(Some("tmpfs"), &run, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    for name in ["leno-cluster", "cgroup", "containerd", "netns", "lock", "user"] {
        make_directory(&run.join(name))?;
    }
    // From here on the cache is found at a fixed place, wherever it lies, which may be below what is hidden next.
    mounted(Some(&settings.cache), run.join("leno-cluster"), None, MsFlags::MS_BIND, None)?;
    mounted(Some(&run), "/run", None, MsFlags::MS_MOVE, None)?;
    let here = Layout::of(Path::new(CACHE)).node(settings.node);
    for place in ["/var/lib", "/var/log", "/opt"] {
        let own = here.join(place.trim_start_matches('/').replace('/', "-"));
        make_directory(&own)?;
        mounted(Some(&own), place, None, MsFlags::MS_BIND, None)?;
    }
    // What the host has in /etc is needed: users, name services, certificates.
    let (upper, work) = (here.join("etc"), here.join("etc-work"));
    make_directory(&upper)?;
    make_directory(&work)?;
    let layers = format!("lowerdir=/etc,upperdir={},workdir={}", upper.display(), work.display());
    mounted(Some("overlay"), "/etc", Some("overlay"), MsFlags::empty(), Some(&layers))?;
    // The processes and links of this node. The groups' mounts are kept: the kubelet looks for them by their places, and
    // finds each once only if the old ones are gone.
    mounted(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None)?;
    mounted(Some("/sys/fs/cgroup"), "/run/cgroup", None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    umount2("/sys", MntFlags::MNT_DETACH).context("unmounting the host's /sys")?;
    mounted(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None)?;
    mounted(Some("/run/cgroup"), "/sys/fs/cgroup", None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    umount2("/run/cgroup", MntFlags::MNT_DETACH).context("unmounting the copy of the control groups")?;
    // The kubelet wants what containers mount to be seen here. Only now: before, unmounting one copy would have unmounted
    // the other.
    mounted::<&str>(None, "/", None, MsFlags::MS_REC | MsFlags::MS_SHARED, None)
}

fn mounted<S: AsRef<Path>>(
    source: Option<S>,
    target: impl AsRef<Path>,
    kind: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<()> {
    let target = target.as_ref();
    mount(source.as_ref().map(AsRef::as_ref), target, kind, flags, data)
        .with_context(|| format!("mounting {} at {}", kind.unwrap_or("a directory"), target.display()))
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))
}

/// Writes the configuration of the node's programs.
fn configure(layout: &Layout, settings: &Settings) -> Result<()> {
    let own = layout.node(settings.node);
    let runc = programs::find("runc").context("runc is gone since `up` looked for it")?;
    for (file, text) in [
        (own.join("containerd.toml"), node_config::containerd(&runc.display().to_string())),
        (own.join("kubelet.yaml"), node_config::kubelet(layout, settings)),
        (own.join("kube-proxy.yaml"), node_config::kube_proxy(layout, settings)),
        // For pods that ask their node's resolver: there is none.
        (own.join("resolv.conf"), "nameserver 127.0.0.1\n".to_owned()),
    ] {
        whole_file::write(&file, text.as_bytes(), 0o644)?;
    }
    // A node that boots again has them still, with what a mesh has made of them.
    let network = Path::new("/etc/cni/net.d/10-pods.conflist");
    if !network.exists() {
        whole_file::write(network, node_config::cni(settings).as_bytes(), 0o644)?;
    }
    // Copies: what a mesh's installer writes beside them or over them is this node's alone.
    let plugins = Path::new("/opt/cni/bin");
    make_directory(plugins)?;
    for plugin in ["bridge", "ptp", "loopback", "host-local", "portmap"] {
        if !plugins.join(plugin).exists() {
            fs::copy(layout.bin().join(plugin), plugins.join(plugin)).with_context(|| format!("copying {plugin}"))?;
        }
    }
    Ok(())
}

/// Gives the node its addresses and the ways to the others' pods.
fn own_network(settings: &Settings) -> Result<()> {
    let (plan, node) = (&settings.plan, settings.node);
    ip(&["link", "set", "lo", "up"])?;
    ip(&["addr", "add", &format!("{}/24", node.address_4()), "dev", "eth0"])?;
    if plan.dual() {
        ip(&["-6", "addr", "add", &format!("{}/64", node.address_6()), "dev", "eth0", "nodad"])?;
    }
    ip(&["link", "set", "eth0", "up"])?;
    ip(&["route", "add", "default", "via", &HOST_4.to_string()])?;
    sysctl("net/ipv4/ip_forward")?;
    if plan.dual() {
        ip(&["-6", "route", "add", "default", "via", &HOST_6.to_string()])?;
        sysctl("net/ipv6/conf/all/forwarding")?;
    }
    for other in plan.nodes().filter(|other| *other != node) {
        ip(&["route", "add", &other.pods_4(), "via", &other.address_4().to_string()])?;
        if plan.dual() {
            ip(&["-6", "route", "add", &other.pods_6(), "via", &other.address_6().to_string()])?;
        }
    }
    Ok(())
}

/// Turns a setting of this namespace on.
fn sysctl(name: &str) -> Result<()> {
    fs::write(format!("/proc/sys/{name}"), "1").with_context(|| format!("writing /proc/sys/{name}"))
}

fn await_containerd() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while let Err(error) = UnixStream::connect(CONTAINERD_SOCKET) {
        if Instant::now() > deadline {
            return Err(error).context("containerd does not listen after two minutes");
        }
        // Nothing tells that a socket is there to be connected to.
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// What a node runs.
#[derive(Debug, Clone, Copy)]
enum Program {
    Containerd,
    KubeProxy,
    Kubelet,
}

/// The programs of this node, and those of them that run.
struct Programs {
    layout: Layout,
    settings: Settings,
    running: Vec<(Program, Child)>,
}

impl Programs {
    fn called(&self, program: Program) -> (&'static str, Vec<String>) {
        let own = self.layout.node(self.settings.node);
        let config = |file: &str| format!("--config={}", own.join(file).display());
        match program {
            Program::Containerd => ("containerd", vec![config("containerd.toml")]),
            Program::KubeProxy => ("kube-proxy", vec![config("kube-proxy.yaml")]),
            Program::Kubelet => {
                let name = self.settings.node.name();
                let arguments = vec![
                    config("kubelet.yaml"),
                    format!("--kubeconfig={}", Identities::of(&self.layout).kubeconfig(&name)),
                    format!("--hostname-override={name}"),
                    format!("--node-ip={}", self.settings.plan.node_addresses(self.settings.node)),
                ];
                ("kubelet", arguments)
            }
        }
    }

    fn start(&mut self, program: Program) -> Result<()> {
        let (name, arguments) = self.called(program);
        let log = self.layout.log(&format!("{}-{name}", self.settings.node.name()));
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let errors = output.try_clone().context("duplicating a descriptor")?;
        let bin = self.layout.bin();
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new(bin.join(name))
            .args(arguments)
            // containerd looks for its shim there.
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        self.running.push((program, child));
        Ok(())
    }

    fn import_images(&self) -> Result<()> {
        for image in ["pause", "coredns", "toolbox"] {
            let archive = self.layout.bin().join(format!("{image}.tar"));
            let output = Command::new(self.layout.bin().join("ctr"))
                .args(["--namespace", "k8s.io", "images", "import"])
                .arg(&archive)
                .output()
                .context("starting ctr")?;
            if !output.status.success() {
                bail!("importing {}: {}", archive.display(), String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        Ok(())
    }

    /// Does not return while the node lives.
    fn keep_running(mut self) -> Result<()> {
        loop {
            let pid = match waitpid(None, None).context("waiting for the node's processes")? {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => pid,
                _ => continue,
            };
            let Some(index) = self.running.iter().position(|(_, child)| Pid::from_raw(child.id() as i32) == pid) else {
                continue;
            };
            let (program, _) = self.running.swap_remove(index);
            say(&format!("{} ended and is started again", self.called(program).0));
            std::thread::sleep(RESTART_AFTER);
            self.start(program)?;
        }
    }
}
