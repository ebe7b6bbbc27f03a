//! `cargo xtask conformance`: the Gateway API's own conformance suite, run against Leno on the cluster of this machine.
//!
//! The profiles are those of a mesh. Its namespaces use a waypoint each, since only a waypoint follows routes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};

use crate::cluster::{Layout, Unreachable, build, load, say};
use crate::command::{done, workspace};

/// Namespaces that the suite makes. They are made before, so that their waypoints are there when its pods start.
const NAMESPACES: [&str; 2] = ["gateway-conformance-mesh", "gateway-conformance-mesh-consumer"];
/// Labels of these namespaces. The suite writes them, too.
const LABELS: &str = "istio.io/dataplane-mode=ambient,istio.io/use-waypoint=waypoint";
const PROFILES: &str = "MESH-HTTP,MESH-GRPC";

/// The core of these profiles. Named because the suite asks the GatewayClass of a gateway where nothing is named.
const CORE: [&str; 3] = ["Mesh", "HTTPRoute", "GRPCRoute"];
/// All that a test of these profiles may ask for, beside the core of the profiles.
const FEATURES: [&str; 15] = [
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteNamedRouteRule",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteParentRefPort",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteNamedRouteRule",
];

/// The program can't be built here, for want of its modules.
const NO_MODULES: u8 = 4;

#[derive(Parser)]
#[command(name = "cargo xtask conformance", about = "The Gateway API's conformance suite, against Leno on the cluster")]
struct Arguments {
    /// Which tests
    #[arg(long, value_enum, default_value_t = Scope::All)]
    scope: Scope,
    /// One test only, by its name in the suite; no report is written then
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Where the report is written [default: target/conformance.yaml]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Build what is missing and run nothing. Exit code 4: Go modules can't be had
    #[arg(long)]
    build: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// What every mesh must do
    Core,
    /// All: core, extended and provisional
    All,
}

/// Carries it out.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let arguments = Arguments::parse_from(std::iter::once("cargo xtask conformance".to_owned()).chain(arguments));
    let layout = Layout::find()?;
    let [suite, echo] = match build::conformance(&layout) {
        Err(error) if error.is::<Unreachable>() => {
            say(&format!("{error:#}"));
            return Ok(ExitCode::from(NO_MODULES));
        }
        built => built?,
    };
    if arguments.build {
        return Ok(ExitCode::SUCCESS);
    }
    load::run(&layout, &[echo.join("echo.tar")])?;
    let field = Field { layout: &layout };
    // Before Leno comes, which leaves definitions alone that somebody else brought.
    field.apply(&suite.join("crds"))?;
    let passed = field.with_mesh(&|| judged(&field, &suite.join("conformance.test"), &arguments));
    field.clear(&suite.join("crds"))?;
    Ok(if passed? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The cluster, and what is done to it.
struct Field<'a> {
    layout: &'a Layout,
}

impl Field<'_> {
    fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.layout.bin().join("kubectl"));
        done(command.arg("--kubeconfig").arg(self.layout.kubeconfig()).args(arguments).stdout(Stdio::null()))
    }

    fn leno(&self, arguments: &[&str]) -> Result<()> {
        let program = workspace().join("target/image/leno");
        ensure!(program.exists(), "there is no {}; `cargo xtask image` makes it", program.display());
        let mut command = Command::new(program);
        done(command.args(arguments).env("KUBECONFIG", self.layout.kubeconfig()).stdout(Stdio::null()))
    }

    fn apply(&self, definitions: &Path) -> Result<()> {
        self.kubectl(&["apply", "--server-side", "--filename", &definitions.display().to_string()])?;
        let established = ["wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=60s"];
        self.kubectl(&established)
    }

    /// Runs something while Leno is installed, and each of the suite's namespaces has its waypoint.
    fn with_mesh(&self, run: &dyn Fn() -> Result<bool>) -> Result<bool> {
        self.leno(&["install", "--wait", "--timeout", "3m"])?;
        let ran = self.waypoints().and_then(|()| run());
        for namespace in NAMESPACES {
            self.kubectl(&["delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s"])?;
        }
        self.leno(&["uninstall"])?;
        ran
    }

    fn waypoints(&self) -> Result<()> {
        for namespace in NAMESPACES {
            self.kubectl(&["create", "namespace", namespace])?;
            let labels: Vec<_> = LABELS.split(',').collect();
            self.kubectl(&[&["label", "namespace", namespace], &labels[..]].concat())?;
            self.leno(&["waypoint", "apply", "-n", namespace])?;
        }
        for namespace in NAMESPACES {
            self.leno(&["waypoint", "status", "-n", namespace, "--wait", "--timeout", "2m"])?;
        }
        Ok(())
    }

    fn clear(&self, definitions: &Path) -> Result<()> {
        self.kubectl(&["delete", "--ignore-not-found", "--filename", &definitions.display().to_string()])
    }
}

/// Runs the suite, tells how each test ended, and says whether all passed.
fn judged(field: &Field<'_>, suite: &Path, arguments: &Arguments) -> Result<bool> {
    let report = arguments.report.clone().unwrap_or_else(|| workspace().join("target/conformance.yaml"));
    let report = std::path::absolute(report).context("finding the report's place")?;
    let scratch = tempfile::tempdir().context("creating a directory")?;
    let mut command = Command::new(suite);
    command.env("KUBECONFIG", field.layout.kubeconfig()).current_dir(scratch.path());
    // Without the anchors, the suite's tests of itself run.
    command.args(["-test.v", "-test.run=^TestConformance$", "-test.timeout=30m"]);
    command.args([
        &format!("--conformance-profiles={PROFILES}"),
        &format!("--namespace-labels={LABELS}"),
        "--organization=leno",
        "--project=leno",
        "--url=https://leno.invalid",
        &format!("--version={}", env!("CARGO_PKG_VERSION")),
        "--contact=leno",
        // The namespaces are deleted as a whole afterwards.
        "--cleanup-base-resources=false",
    ]);
    let more: &[&str] = if arguments.scope == Scope::All { &FEATURES } else { &[] };
    command.arg(format!("--supported-features={}", [&CORE, more].concat().join(",")));
    match &arguments.test {
        Some(test) => drop(command.arg(format!("--run-test={test}"))),
        None => drop(command.arg(format!("--report-output={}", report.display()))),
    }
    let log = workspace().join("target/conformance.log");
    let mut kept = fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting the suite")?;
    let mut ends = Ends::default();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.context("reading what the suite says")?;
        writeln!(kept, "{line}").with_context(|| format!("writing {}", log.display()))?;
        ends.take(&line);
    }
    let status = child.wait().context("waiting for the suite")?;
    ends.tell(began.elapsed());
    say(&format!("  {}", log.display()));
    if arguments.test.is_none() {
        ensure!(report.exists(), "the suite wrote no report; {} says why", log.display());
        say(&format!("  {}", report.display()));
    }
    if ends.passed == 0 {
        bail!("no test ran; {} says why", log.display());
    }
    Ok(status.success())
}

/// How the suite's tests ended, as `go test -v` tells it.
#[derive(Debug, Default)]
struct Ends {
    passed: usize,
    skipped: usize,
    /// Each with how long it took.
    failed: BTreeMap<String, String>,
}

impl Ends {
    fn take(&mut self, line: &str) {
        // What is indented deeper is a part of a test.
        let Some(end) = line.strip_prefix("    --- ") else { return };
        let mut words = end.split([' ', '/']);
        let (verdict, name) = (words.next(), words.nth(1).unwrap_or_default());
        match verdict {
            Some("PASS:") => self.passed += 1,
            Some("SKIP:") => self.skipped += 1,
            Some("FAIL:") => drop(self.failed.insert(name.to_owned(), end.to_owned())),
            _ => return,
        }
        if verdict != Some("SKIP:") {
            say(&format!("  {end}"));
        }
    }

    fn tell(&self, took: Duration) {
        let Self { passed, skipped, failed } = self;
        say(&format!(
            "{passed} tests passed, {} failed, {skipped} were about something else, after {:.0} s",
            failed.len(),
            took.as_secs_f64()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_suite_says_is_counted_by_test() {
        let mut ends = Ends::default();
        for line in [
            "=== RUN   TestConformance/MeshBasic",
            "--- FAIL: TestConformance (76.10s)",
            "    --- PASS: TestConformance/MeshBasic (1.40s)",
            "        --- FAIL: TestConformance/MeshPorts/a_part (0.40s)",
            "    --- FAIL: TestConformance/MeshPorts (3.00s)",
            "    --- SKIP: TestConformance/GatewayStaticAddresses (0.00s)",
        ] {
            ends.take(line);
        }
        assert_eq!((ends.passed, ends.skipped), (1, 1));
        assert_eq!(ends.failed.keys().collect::<Vec<_>>(), ["MeshPorts"]);
    }
}
