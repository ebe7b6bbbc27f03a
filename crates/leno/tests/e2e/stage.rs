//! Runs `leno` as a user does: `up`, `ps`, `exec`, `down`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leno_testkit::skips;
use serde_json::Value;

/// Time for anything that takes a second or two on an idle machine. CI's machine is not idle.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A stage that is up. It is taken down when this is dropped.
pub(crate) struct Stage {
    name: String,
    pub(crate) dir: tempfile::TempDir,
    /// Where its run directory is, if not in the usual place.
    base: Option<PathBuf>,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

pub(crate) fn leno() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.stdin(Stdio::null()).env_remove("RUST_LOG");
    // Pods inherit both variables. In a locale that isn't installed, some programs complain or do not start.
    command.env("LC_ALL", "C.UTF-8").env("PATH", std::env::join_paths(search_path()).unwrap());
    command
}

#[track_caller]
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap_or_else(|e| panic!("can't run {command:?}: {e}"));
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Whether the machine lacks something the test needs.
pub(crate) fn skip(test: &str, programs: &[&str]) -> bool {
    let mut reasons = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        reasons.push(skips::NEEDS_ROOT.to_owned());
    }
    for program in programs {
        if !exists(program) {
            reasons.push(skips::not_installed(program));
        }
    }
    if !reasons.is_empty() {
        skips::skip(test, &reasons.join(", "));
    }
    !reasons.is_empty()
}

/// The path of a real ztunnel. `None` after reporting that the test is skipped without it.
pub(crate) fn ztunnel(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("LENO_ZTUNNEL").map(PathBuf::from);
    if path.is_none() {
        skips::skip(test, "set LENO_ZTUNNEL=PATH to a ztunnel binary");
    }
    path
}

fn exists(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    search_path().iter().any(|dir| dir.join(program).exists())
}

/// The caller's path, and where daemons are: root's login may lack the latter.
fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect()
}

impl Stage {
    /// Brings up `manifests` (file name and text) and waits until every pod is ready.
    #[track_caller]
    pub(crate) fn up(manifests: &[(&str, &str)], args: &[&str]) -> Self {
        let stage = Self::prepare(manifests);
        stage.bring_up(args);
        stage
    }

    /// Brings up one that is prepared, and waits until every pod is ready.
    #[track_caller]
    pub(crate) fn bring_up(&self, args: &[&str]) {
        let ran = run(self.up_command(args));
        assert_eq!(ran.code, 0, "leno up failed\nstdout: {}\nstderr: {}", ran.stdout, ran.stderr);
        self.wait("every pod ready", |ps| {
            let pods = ps["pods"].as_array()?;
            pods.iter().all(|p| p["ready"] == true).then_some(())
        });
    }

    /// A stage that is not up yet.
    pub(crate) fn prepare(manifests: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        let stage = Self { name, dir, base: None };
        for (file, text) in manifests {
            stage.write(file, text);
        }
        stage
    }

    /// The same, with its run directory below this directory.
    pub(crate) fn prepare_in(base: &Path, manifests: &[(&str, &str)]) -> Self {
        let mut stage = Self::prepare(manifests);
        stage.base = Some(base.to_owned());
        stage
    }

    /// `leno up --detach` on this stage's manifests.
    pub(crate) fn up_command(&self, args: &[&str]) -> &'static mut Command {
        let mut command = self.command("up");
        command.args(["--detach", "-f"]).arg(self.dir.path()).args(args);
        Box::leak(Box::new(command))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Writes a manifest the way editors do: whole, by renaming.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let draft = self.dir.path().join(format!(".{file}.draft"));
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.dir.path().join(file)).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.dir.path().join(file)).unwrap();
    }

    pub(crate) fn command(&self, subcommand: &str) -> Command {
        let mut command = leno();
        command.args([subcommand, "--name", &self.name]);
        if let Some(base) = &self.base {
            command.env("LENO_RUN_DIR", base);
        }
        command
    }

    #[track_caller]
    pub(crate) fn exec<S: AsRef<OsStr>>(&self, pod: &str, argv: &[S]) -> Ran {
        run(self.command("exec").arg(pod).arg("--").args(argv))
    }

    /// Starts a command in a pod and leaves it running.
    pub(crate) fn spawn(&self, pod: &str, argv: &[&str]) -> std::process::Child {
        let mut command = self.command("exec");
        command.arg(pod).arg("--").args(argv);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// A shell line in a pod.
    #[track_caller]
    pub(crate) fn sh(&self, pod: &str, line: &str) -> Ran {
        self.exec(pod, &["sh", "-c", line])
    }

    #[track_caller]
    pub(crate) fn ps(&self) -> Value {
        let ran = run(self.command("ps").args(["-o", "json"])).ok();
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// One pod of `ps`.
    #[track_caller]
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Value {
        let ps = self.ps();
        let found = ps["pods"].as_array().unwrap().iter().find(|p| p["namespace"] == namespace && p["name"] == name);
        found.unwrap_or_else(|| panic!("no pod {namespace}/{name} in {ps:#}")).clone()
    }

    /// Waits until `ps` shows what satisfies `check`.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, check: impl Fn(&Value) -> Option<T>) -> T {
        eventually(what, || {
            let ran = run(self.command("ps").args(["-o", "json"]));
            let ps: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)?;
            check(&ps).ok_or_else(|| format!("{ps:#}"))
        })
    }

    /// The process id of a node's proxy, once it is ready and another one than `but`.
    #[track_caller]
    pub(crate) fn proxy(&self, node: &str, but: Option<i32>) -> i32 {
        self.wait("the node's proxy", |ps| {
            let found = ps["nodes"].as_array()?.iter().find(|n| n["name"] == node)?;
            i32::try_from(found["pid"].as_i64()?).ok().filter(|pid| found["ready"] == true && Some(*pid) != but)
        })
    }

    /// Fetches a page of a node proxy from inside its node.
    #[track_caller]
    pub(crate) fn node_get(&self, node: &str, port: u16, path: &str) -> String {
        let netns = format!("/run/netns/{}", self.netns(node));
        let url = format!("http://127.0.0.1:{port}{path}");
        run(Command::new("nsenter").arg(format!("--net={netns}")).args([
            "curl",
            "--noproxy",
            "*",
            "-sS",
            "-m",
            "10",
            &url,
        ]))
        .ok()
        .stdout
    }

    /// The name of the network namespace of a node.
    pub(crate) fn netns(&self, node: &str) -> String {
        let wanted = format!("leno-{}.{node}", self.name);
        assert!(Path::new("/run/netns").join(&wanted).exists(), "no network namespace {wanted}");
        wanted
    }

    /// The output of `leno explain`.
    #[track_caller]
    pub(crate) fn explain(&self, source: &str, destination: &str) -> String {
        run(self.command("explain").args([source, destination])).stdout
    }

    /// What a command of this stage prints, once it holds what is looked for: a line of a log and a count come a moment after the
    /// answer that they tell of.
    #[track_caller]
    pub(crate) fn told(&self, command: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let [subcommand, arguments @ ..] = command else { panic!("no command") };
        eventually(&command.join(" "), || {
            let said = run(self.command(subcommand).args(arguments)).stdout;
            if holds(&said) { Ok(said) } else { Err(said) }
        })
    }

    /// The log lines of the node proxy and of the stage.
    pub(crate) fn node_log(&self, node: &str) -> String {
        run(self.command("logs").args(["--node", node])).stdout
    }

    pub(crate) fn down(&self) -> Ran {
        run(&mut self.command("down"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in ["node-1", "node-2"] {
                let log = self.node_log(node);
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                eprintln!("--- last lines of {node}:");
                for line in tail.into_iter().rev() {
                    eprintln!("{line}");
                }
            }
        }
        self.down();
    }
}

/// Writes a program that is a shell script of these lines.
pub(crate) fn script(path: &Path, lines: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// Tries until it works. The pause only saves processor time; no result depends on it.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(last) if start.elapsed() > PATIENCE => panic!("never came: {what}; last seen: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
