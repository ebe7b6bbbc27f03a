//! User-space WireGuard between the nodes. It encrypts below TCP, authenticates nodes instead of workloads, and leaves
//! traffic within a node alone.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leno_capture::links;
use leno_local::Stage;
use leno_local::addresses::NodeAddresses;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::carrier::Carrier;
use crate::scenario::NODES;

/// The directory of the sockets by which user-space WireGuard is configured (wireguard.com/xplatform).
const SOCKETS: &str = "/var/run/wireguard";
const PORT: u16 = 51820;
/// The limit for the program to start, and to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Private and public key of each node: the pairs of RFC 7748 §6.1, which everybody knows. They protect a benchmark's
/// filler bytes on links that exist on one machine only, as long as the benchmark runs.
const KEYS: [(&str, &str); NODES] = [
    (
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
    ),
    (
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ),
];

/// Running tunnels. Dropping it kills them.
pub(super) struct WireGuard {
    ends: Vec<End>,
    /// Removed after what is in it.
    _directory: Directory,
}

/// The directory of sockets.
struct Directory {
    /// It did not exist before.
    made: bool,
}

struct End {
    node: String,
    child: Child,
    socket: PathBuf,
}

impl WireGuard {
    /// Starts `program` on every node and routes the pods of the other node through it.
    ///
    /// # Errors
    /// What could not be started or routed, as a text for people.
    pub(super) async fn start(stage: &Stage, program: &Path) -> Result<Self, String> {
        let directory = Directory { made: !Path::new(SOCKETS).exists() };
        let mut wireguard = Self { ends: Vec::new(), _directory: directory };
        for number in 1..=NODES {
            wireguard.start_end(stage, program, number).await.map_err(|reason| format!("node-{number}: {reason}"))?;
        }
        Ok(wireguard)
    }

    async fn start_end(&mut self, stage: &Stage, program: &Path, number: usize) -> Result<(), String> {
        let node = format!("node-{number}");
        let namespace = stage.node_namespace(&node).ok_or("there is no such node")?;
        let (device, socket) = (device(number), socket(number));
        // A killed run leaves it, and the program would then not listen.
        let _ = std::fs::remove_file(&socket);
        let log = File::create(log_file(stage, &node)).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["-f", &device]).stdin(Stdio::null()).stdout(log).stderr(errors).kill_on_drop(true);
        crate::child::tie(command.as_std_mut());
        let spawned = namespace.run(|| command.spawn()).map_err(|error| error.to_string())?;
        let child = spawned.map_err(|error| format!("{}: {error}", program.display()))?;
        self.ends.push(End { node, child, socket });
        let Some(end) = self.ends.last_mut() else { return Ok(()) };
        end.configure(program, &settings(number)?).await?;

        let wired = || -> leno_capture::Result<()> {
            links::set_up(&namespace, &device)?;
            // The node has a route to these addresses already. Two halves are more specific than the whole.
            for half in halves(number) {
                links::add_route(&namespace, &links::Route::to(half).device(&device))?;
            }
            Ok(())
        };
        wired().map_err(|error| error.to_string())
    }

    /// Its processes.
    pub(super) fn carriers(&self) -> Vec<Carrier> {
        let pid = |end: &End| end.child.id().and_then(|pid| i32::try_from(pid).ok());
        self.ends
            .iter()
            .filter_map(|end| Some(Carrier { node: end.node.clone(), pid: pid(end)?, restarts: 0 }))
            .collect()
    }

    /// Ends it in order.
    pub(super) async fn stop(mut self) {
        for end in &mut self.ends {
            if let Some(pid) = end.child.id().and_then(|pid| i32::try_from(pid).ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            if tokio::time::timeout(PATIENCE, end.child.wait()).await.is_err() {
                let _ = end.child.kill().await;
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The program removes it unless it was killed.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            // Not if others have begun to use it.
            let _ = std::fs::remove_dir(SOCKETS);
        }
    }
}

impl End {
    async fn configure(&mut self, program: &Path, settings: &str) -> Result<(), String> {
        let begun = Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(format!(
                        "{} runs, but nobody listens at {} after {} s ({error}): is it really user-space WireGuard, such as \
                         wireguard-go?",
                        program.display(),
                        self.socket.display(),
                        PATIENCE.as_secs()
                    ));
                }
                Err(_) => {}
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "{} ended with {status}: it makes a device, for which it needs root and /dev/net/tun; or is it not \
                     user-space WireGuard, such as wireguard-go?",
                    program.display()
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let answer = async {
            stream.write_all(settings.as_bytes()).await?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\n\n") {
                if stream.read_buf(&mut answer).await? == 0 {
                    break;
                }
            }
            io::Result::Ok(String::from_utf8_lossy(&answer).trim().to_owned())
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) if answer == "errno=0" => Ok(()),
            Ok(Ok(answer)) => Err(format!("the program refused its configuration: {answer}")),
            Ok(Err(error)) => Err(format!("the program did not take its configuration: {error}")),
            Err(_) => Err("the program does not answer".to_owned()),
        }
    }
}

/// The name of a node's device, and so of its socket.
fn device(number: usize) -> String {
    format!("leno-lab{number}")
}

/// Removes the sockets of killed user-space WireGuard processes. A socket that somebody listens on is kept.
pub fn remove_sockets() {
    for socket in (1..=NODES).map(socket) {
        let refused = std::os::unix::net::UnixStream::connect(&socket).err();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(&socket).and_then(|()| std::fs::remove_dir(SOCKETS));
        }
    }
}

fn socket(number: usize) -> PathBuf {
    Path::new(SOCKETS).join(format!("{}.sock", device(number)))
}

pub(super) fn log_file(stage: &Stage, node: &str) -> PathBuf {
    stage.run_dir().join(node).join("wireguard.log")
}

fn other(number: usize) -> usize {
    NODES + 1 - number
}

/// The halves of the other node's range of pods.
fn halves(number: usize) -> Vec<ipnet::IpNet> {
    let range = NodeAddresses::new(other(number)).map(|other| other.pods_v4());
    let range = range.and_then(|(net, length)| ipnet::Ipv4Net::new(net, length).ok());
    let halves = range.and_then(|range| range.subnets(range.prefix_len() + 1).ok());
    halves.into_iter().flatten().map(ipnet::IpNet::V4).collect()
}

/// One `set` operation of the configuration protocol.
fn settings(number: usize) -> Result<String, String> {
    let peer = NodeAddresses::new(other(number)).ok_or("there is no other node")?;
    let ((private, _), (_, public)) = (KEYS[number - 1], KEYS[other(number) - 1]);
    let endpoint = SocketAddr::from((peer.fabric_v4(), PORT));
    let (net, length) = peer.pods_v4();
    Ok(format!(
        "set=1\nprivate_key={private}\nlisten_port={PORT}\nreplace_peers=true\npublic_key={public}\nendpoint={endpoint}\n\
         allowed_ip={net}/{length}\n\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_configured_with_its_peer() {
        let one = settings(1).unwrap();
        assert!(
            one.starts_with("set=1\nprivate_key=77076d0a") && one.ends_with("allowed_ip=10.244.2.0/24\n\n"),
            "{one}"
        );
        assert!(one.contains("public_key=de9edb7d") && one.contains("endpoint=172.30.1.2:51820\n"), "{one}");
        assert!(settings(2).unwrap().contains("public_key=8520f009"));
        let halves: Vec<_> = halves(1).iter().map(ToString::to_string).collect();
        assert_eq!(halves, ["10.244.2.0/25", "10.244.2.128/25"]);
    }
}
