//! Node proxies and programs as processes of their own, so that what they hold can be read from
//! `/proc`.
//!
//! The process is this test binary once more, or the program that `LENO_SOAK_PROXY` names.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;
use leno_testkit::control_plane::{ControlPlane, HOST_NAME, TOKEN};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::size::Size;
use crate::support::{APP, Arguments, Pod};

/// Says what this binary is to be, if not a test.
const ROLE: &str = "LENO_SOAK_ROLE";

/// What the program on [`APP`] is to do with a connection: the first byte of its first message.
pub(crate) mod order {
    /// Answer and close.
    pub(crate) const CLOSE: u8 = b'c';
    /// Answer what comes until the other side closes.
    pub(crate) const ECHO: u8 = b'e';
    /// Answer, read nothing more, and never close.
    pub(crate) const IGNORE: u8 = b'i';
    /// Answer, and after the next message send as much as goes.
    pub(crate) const PUSH: u8 = b'p';
    /// Answer, and read all that comes.
    pub(crate) const TAKE: u8 = b't';
    /// Answer, read [`super::MUCH`], answer again, read nothing more, and never close.
    pub(crate) const QUIT: u8 = b'q';
}

/// Threads of a proxy that carry connections; each has tunnels of its own.
pub(crate) const WORKERS: usize = 2;

/// Length of a message and of its answer.
pub(crate) const MESSAGE: usize = 16;

/// What a program reads before it stops, bytes: enough to have earned the largest window.
pub(crate) const MUCH: usize = 6 << 20;

/// A child process; ended when dropped.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
}

/// Resident memory, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) resident: usize,
    /// What was allocated; the rest is the program itself.
    pub(crate) anonymous: usize,
}

impl Process {
    /// Starts the proxy of a node.
    pub(crate) fn proxy(node: &'static str, socket: &Path, control: &ControlPlane, size: &Size) -> Self {
        Self::proxy_at(node, socket, control, control.address(), [0; 3], size)
    }

    /// As [`Self::proxy`], with the address at which it finds the control plane, and its ports for
    /// admin, metrics and readiness.
    pub(crate) fn proxy_at(
        node: &'static str,
        socket: &Path,
        control: &ControlPlane,
        address: SocketAddr,
        ports: [u16; 3],
        size: &Size,
    ) -> Self {
        let mut command = match std::env::var_os("LENO_SOAK_PROXY") {
            None => this_binary_as("proxy"),
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("node");
                command
            }
        };
        command
            .env("NODE_NAME", node)
            .env("XDS_ADDRESS", format!("https://{address}"))
            .env("XDS_ROOT_CA", control.root_pem())
            .env("ALT_XDS_HOSTNAME", HOST_NAME)
            .env("ALT_CA_HOSTNAME", HOST_NAME)
            .env("AUTH_TOKEN", TOKEN)
            .env("INPOD_UDS", socket)
            .env("ZTUNNEL_WORKER_THREADS", WORKERS.to_string())
            .env("LENO_HANDSHAKE_TIMEOUT", format!("{}ms", size.handshake.as_millis()))
            .env("POOL_UNUSED_RELEASE_TIMEOUT", format!("{}ms", size.tunnel_kept.as_millis()));
        for (name, port) in ["ADMIN_PORT", "STATS_PORT", "READINESS_PORT"].into_iter().zip(ports) {
            command.env(name, port.to_string());
        }
        Self::start(node, command)
    }

    /// Starts the program of a pod.
    pub(crate) fn program(name: &'static str, pod: &Pod) -> Self {
        pod.namespace().run(|| Self::start(name, this_binary_as("program"))).unwrap()
    }

    fn start(name: &'static str, mut command: Command) -> Self {
        // Access logs and all: it works as it always does.
        let log = match std::env::var_os("LENO_SOAK_LOGS") {
            None => Stdio::null(),
            Some(directory) => {
                std::fs::create_dir_all(&directory).unwrap();
                let log = Path::new(&directory).join(format!("{name}-{}.log", std::process::id()));
                std::fs::File::create(&log).unwrap_or_else(|e| panic!("can't write {}: {e}", log.display())).into()
            }
        };
        let child = command.stdin(Stdio::piped()).stdout(log).spawn();
        Self { name, child: child.unwrap_or_else(|e| panic!("can't start {command:?}: {e}")) }
    }

    /// Which one it is.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Open descriptors, without those of its own network namespace: each thread keeps one from
    /// the first time it leaves for a pod's.
    pub(crate) fn descriptors(&self) -> usize {
        let home = std::fs::read_link("/proc/self/ns/net").unwrap();
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        // One that is closed while we look is not open.
        let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        open.filter(|target| *target != home).count()
    }

    /// Memory.
    pub(crate) fn memory(&self) -> Memory {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let bytes = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        Memory { resident: bytes("VmRSS:"), anonymous: bytes("RssAnon:") }
    }

    /// How often its threads have gone to sleep of themselves so far, and so have been woken again.
    pub(crate) fn wakes(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of = |task: std::path::PathBuf| {
            // One that has ended meanwhile is none of those that last.
            let status = std::fs::read_to_string(task.join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        };
        tasks.filter_map(|task| of(task.ok()?.path())).sum()
    }

    /// Processor time used so far, to 10 ms.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name before it may hold anything, but no second closing parenthesis follows it.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // utime and stime, fields 14 and 15 of proc(5), in ticks of 1/100 s.
        let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }
}

impl Process {
    /// The processor time that each of its threads has used so far, and the threads' names.
    pub(crate) fn threads_time(&self) -> Vec<(String, Duration)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of = |task: std::path::PathBuf| {
            // One that has ended meanwhile is none of those that last.
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
            let spent = stat.split_whitespace().next()?.parse().ok()?;
            Some((name.trim().to_owned(), Duration::from_nanos(spent)))
        };
        tasks.filter_map(|task| of(task.ok()?.path())).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn this_binary_as(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Not a test: what this binary does when it is started once more.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // A test that was killed can't end what it started.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    match &*role {
        "proxy" => {
            let config = Arguments::parse_from(["node"]).config;
            let log = leno_proxy::init_log(&config.proxy).unwrap();
            leno_node::run(config, &log, crate::trim).unwrap();
        }
        "program" => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(program()),
        _ => panic!("no such role: {role}"),
    }
}

async fn program() {
    let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), APP)).await.unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(attend(stream));
    }
}

/// One connection. However it ends, it ends.
async fn attend(mut stream: TcpStream) -> std::io::Result<()> {
    let mut message = [0; MESSAGE];
    stream.set_nodelay(true)?;
    stream.read_exact(&mut message).await?;
    stream.write_all(&message).await?;
    match message[0] {
        order::CLOSE => Ok(()),
        order::ECHO => loop {
            stream.read_exact(&mut message).await?;
            stream.write_all(&message).await?;
        },
        order::IGNORE => std::future::pending().await,
        order::PUSH => {
            stream.read_exact(&mut message).await?;
            let block = vec![7; 256 << 10];
            loop {
                stream.write_all(&block).await?;
            }
        }
        order::TAKE => {
            let mut block = vec![0; 256 << 10];
            while stream.read(&mut block).await? > 0 {}
            Ok(())
        }
        order::QUIT => {
            stream.read_exact(&mut vec![0; MUCH]).await?;
            stream.write_all(&message).await?;
            std::future::pending().await
        }
        other => panic!("no such order: {other}"),
    }
}
