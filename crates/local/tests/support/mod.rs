//! A stage per test, and programs run in its pods.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_local::names::StageName;
use leno_local::{Listing, Stage, StageOptions};
use leno_testkit::skips::{NEEDS_ROOT, skip};

/// The longest that a stage may take to be ready. Generous, because the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Test {
    name: &'static str,
    run: fn(),
    needs_ztunnel: bool,
}

pub(crate) fn test(name: &'static str, run: fn()) -> Test {
    Test { name, run, needs_ztunnel: false }
}

/// A test in which a real ztunnel is every node's proxy.
pub(crate) fn ztunnel_test(name: &'static str, run: fn()) -> Test {
    Test { name, run, needs_ztunnel: true }
}

/// Runs the tests whose names contain one of the arguments, or all.
pub(crate) fn run_all(tests: &[Test]) {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        tests.iter().for_each(|test| println!("{}: test", test.name));
        return;
    }
    let mut failed = 0;
    for test in tests {
        if !wanted.is_empty() && !wanted.iter().any(|part| test.name.contains(part.as_str())) {
            continue;
        }
        if !nix::unistd::geteuid().is_root() {
            skip(test.name, NEEDS_ROOT);
            continue;
        }
        if test.needs_ztunnel && ztunnel().is_none() {
            skip(test.name, "set LENO_ZTUNNEL=PATH to a ztunnel binary");
            continue;
        }
        let begun = Instant::now();
        let ok = std::panic::catch_unwind(test.run).is_ok();
        println!(
            "test {} ... {} ({:.1} s)",
            test.name,
            if ok { "ok" } else { "FAILED" },
            begun.elapsed().as_secs_f32()
        );
        failed += i32::from(!ok);
    }
    if failed > 0 {
        println!("{failed} failed");
        std::process::exit(1);
    }
}

pub(crate) fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

/// Writes a directory of manifests.
pub(crate) fn manifests(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

pub(crate) fn name(test: &str) -> StageName {
    StageName::new(&format!("t-{test}")).unwrap()
}

/// The network namespaces that belong to a test's stage.
pub(crate) fn namespaces(test: &str) -> Vec<String> {
    let all = NetworkNamespace::list(Path::new(leno_capture::NAMED_DIR)).unwrap();
    all.into_iter().filter(|netns| name(test).owns(netns)).collect()
}

/// A stage for one test. If it is dropped without `stop`, because the test failed, the next run removes what is left.
pub(crate) struct Playing {
    stage: Option<Stage>,
}

impl Playing {
    pub(crate) async fn start(test: &str, dir: &Path, nodes: usize) -> Self {
        Self::start_with(test, dir, nodes, None).await
    }

    /// Starts a stage in which this program, instead of the stand-in, is every node's proxy.
    pub(crate) async fn start_with(test: &str, dir: &Path, nodes: usize, proxy: Option<PathBuf>) -> Self {
        let mut options = StageOptions::new(name(test));
        options.nodes = nodes;
        options.manifests = vec![dir.to_owned()];
        options.default_proxy = proxy;
        let stage = Stage::start(options).await.unwrap_or_else(|error| panic!("{error}"));
        stage.wait_ready(LIMIT).await.unwrap_or_else(|error| panic!("{error}"));
        Self { stage: Some(stage) }
    }

    /// Starts a stage and does not wait for pods that may never be ready.
    pub(crate) async fn start_unready(test: &str, dir: &Path, nodes: usize) -> Self {
        let mut options = StageOptions::new(name(test));
        options.nodes = nodes;
        options.manifests = vec![dir.to_owned()];
        let stage = Stage::start(options).await.unwrap_or_else(|error| panic!("{error}"));
        Self { stage: Some(stage) }
    }

    pub(crate) fn stage(&self) -> &Stage {
        self.stage.as_ref().unwrap()
    }

    pub(crate) fn listing(&self) -> Listing {
        self.stage().listing()
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.stage().run_dir()
    }

    pub(crate) async fn stop(mut self) {
        self.stage.take().unwrap().shutdown().await;
    }

    /// Runs a shell command in a pod and returns what it printed.
    pub(crate) async fn exec(&self, namespace: &str, pod: &str, command: &str) -> String {
        let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
        let (code, text) = self.stage().output(namespace, pod, argv).await.unwrap_or_else(|error| panic!("{error}"));
        let _ = code;
        text
    }
}

/// A stage in a process of its own.
pub(crate) struct Elsewhere {
    pub(crate) child: std::process::Child,
    pub(crate) name: StageName,
    /// A copy of the test program for another user. Kept until the stage has ended.
    _program: Option<tempfile::TempDir>,
}

impl Elsewhere {
    /// Plays a directory. `user` is the stage, program directory and user id to use instead of root's.
    pub(crate) fn start(test: &str, dir: &Path, user: Option<(StageName, &Path, u32)>) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        let mut this = std::env::current_exe().unwrap();
        // Another user may not be allowed to enter the checkout, for instance below /root.
        let program = user.is_some().then(|| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
            let copy = dir.path().join("stage");
            std::fs::copy(&this, &copy).unwrap();
            this = copy;
            dir
        });
        let mut command = std::process::Command::new(&this);
        // With an enrolled pod, only a real node proxy makes the stage ready.
        if let (Some(ztunnel), true) = (ztunnel(), test.ends_with("mesh")) {
            command.env("LENO_TEST_PROXY", ztunnel);
        }
        command.env("LENO_TEST_UP", dir).env("LENO_TEST_NAME", test).stdin(std::process::Stdio::null());
        let mut stage = name(test);
        if let Some((name, run_dir, user)) = user {
            command.env("LENO_RUN_DIR", run_dir).uid(user).gid(user).current_dir("/");
            stage = name;
        }
        Self { child: command.spawn().unwrap(), name: stage, _program: program }
    }

    pub(crate) async fn ready(&mut self) -> Listing {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if let Ok(mut client) = leno_local::client::Client::connect(&self.name).await {
                let listing = client.ps().await.unwrap();
                if listing.is_ready() {
                    return listing;
                }
            }
            assert!(self.child.try_wait().unwrap().is_none(), "the supervisor ended");
            // That is another process, so there is no event to wait for.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not ready");
    }

    pub(crate) async fn client(&self) -> leno_local::client::Client {
        leno_local::client::Client::connect(&self.name).await.unwrap()
    }
}

/// What the test program does when [`Elsewhere`] started it.
pub(crate) fn play_elsewhere(dir: &std::ffi::OsStr) -> ! {
    if std::env::var("LENO_TEST_NAME").is_ok_and(|name| name.ends_with("-root")) {
        let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).unwrap();
        std::fs::write("/proc/self/setgroups", "deny").unwrap();
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).unwrap();
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).unwrap();
        assert!(nix::unistd::geteuid().is_root());
    }
    leno_local::privilege::acquire().unwrap_or_else(|error| panic!("{error}"));
    let mut options = StageOptions::new(name(&std::env::var("LENO_TEST_NAME").unwrap()));
    options.nodes = 1;
    options.manifests = vec![dir.into()];
    options.default_proxy = std::env::var_os("LENO_TEST_PROXY").map(PathBuf::from);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = runtime.block_on(leno_local::up::run_foreground(options, FOR_EVER));
    if let Err(error) = &ended {
        eprintln!("error: {error}");
    }
    std::process::exit(i32::from(ended.is_err()));
}

/// `up` waits without a limit.
const FOR_EVER: leno_local::up::Patience =
    leno_local::up::Patience { limit: None, on_timeout: leno_local::up::OnTimeout::Keep };

/// Stands in for a node's proxy where the mesh doesn't matter. It reports that it is ready and does nothing else.
pub(crate) fn stand_in_proxy() -> ! {
    let listener = std::net::TcpListener::bind("127.0.0.1:15021").unwrap();
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let mut head = [0; 1024];
        let _ = stream.read(&mut head);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
}

pub(crate) fn ztunnel() -> Option<PathBuf> {
    std::env::var_os("LENO_ZTUNNEL").map(PathBuf::from)
}
