//! What each tier of `.ci/run` does, as a list of steps.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use super::executables::Executable;
use super::parts;
use super::places::{Places, workspace};
use super::step::{Place, Step};
use super::tools::{self, Tool};
use crate::{cluster, command};

/// Which checks are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Tier {
    /// Before every change: everything but what needs a machine of its own
    All,
    /// Lock file, format, clippy and dependency law only
    Lint,
    /// What `cargo test --workspace` runs, side by side and with the programs that some tests want; no cluster
    Tests,
    /// On a quiet machine and before a release: what is measured, at full size, and README's first command
    Measured,
    /// What is shipped, before a release: two builds of the image in two directories must be the same
    Dist,
}

/// The step by which all that `cargo test --workspace` runs is compiled.
pub(super) const BUILD: &str = "build";
/// The step that says what was skipped, after all tests.
const SUMMARY: &str = "summary";

/// Steps that are known before anything is compiled.
pub(super) fn before_the_build(tier: Tier, places: &Places) -> Result<Vec<Step>> {
    Ok(match tier {
        // In the background they go in this order: what others wait for comes first.
        Tier::All => {
            let compiled = vec![build(), image()];
            let tools = tools::OF_TESTS.into_iter().map(tool).collect();
            [tools, compiled, cluster_programs(), lint(places)?, clippy(), fuzz(places, 10)].concat()
        }
        Tier::Lint => [lint(places)?, clippy_at_once()].concat(),
        Tier::Tests => tools::OF_TESTS.into_iter().map(tool).chain([build()]).collect(),
        Tier::Measured => {
            let tools = tools::OF_TESTS.into_iter().chain(tools::OF_MEASUREMENTS).map(tool).collect();
            [tools, vec![build(), image(), previous_image()], cluster_programs(), fuzz(places, 60)].concat()
        }
        Tier::Dist => {
            vec![cargo("dist", Place::Front { tenths: 20 }, &[]).runs(this(&["ci-part", "dist"])).minutes(85)]
        }
    })
}

/// Steps that are known when the tests are compiled.
pub(super) fn after_the_build(tier: Tier, executables: &[Executable], places: &Places) -> Result<Vec<Step>> {
    match tier {
        Tier::All => {
            let mut steps = tests(executables, places)?;
            let names: Vec<_> = steps.iter().map(|step| step.name.clone()).collect();
            steps.extend([demo(), packages()]);
            steps.extend(on_the_cluster(executables, &names, Scope::Core));
            Ok(steps)
        }
        Tier::Tests => tests(executables, places),
        Tier::Measured => {
            let mut steps = Vec::new();
            let tests = || executables.iter().filter(|executable| executable.name != CLUSTER_TESTS);
            for executable in tests().filter(|executable| executable.has_harness) {
                steps.push(measured(executable, places)?);
            }
            for (label, filter) in BESIDE_OTHERS {
                for executable in tests().filter(|executable| executable.label() == label) {
                    let mut step = with_everything(test(executable, places)?, places)?;
                    step.name = format!("beside others {label}");
                    step.place = Place::Alone;
                    step.command.extend(filter.iter().map(OsString::from));
                    steps.push(step);
                }
            }
            steps.push(first_command());
            let names: Vec<_> = steps.iter().map(|step| step.name.clone()).collect();
            for mut step in on_the_cluster(executables, &names, Scope::All) {
                if step.name == ON_CLUSTER {
                    step = with_everything(step, places)?.with("LENO_SOAK", "1").with("LENO_E2E_AWAY_SECONDS", "600");
                    step = step.follows(&["previous-image"]).minutes(90);
                    step.programs.push(("LENO_PREVIOUS_IMAGE".to_owned(), parts::previous_image_path()));
                }
                steps.push(step);
            }
            Ok(steps)
        }
        Tier::Lint | Tier::Dist => Ok(Vec::new()),
    }
}

/// This program, called with other words.
fn this(words: &[&str]) -> Vec<OsString> {
    let program = std::env::current_exe().map_or_else(|_| "xtask".into(), |path| path.into_os_string());
    std::iter::once(program).chain(words.iter().map(OsString::from)).collect()
}

fn cargo(name: &str, place: Place, words: &[&str]) -> Step {
    let command = std::iter::once(command::cargo_program()).chain(words.iter().map(OsString::from));
    let step = Step::new(name, place).runs(command);
    Step { directory: Some(workspace()), ..step }
}

/// Seconds each, but for cargo-deny where it is not built yet.
fn lint(places: &Places) -> Result<Vec<Step>> {
    let quick = Place::Front { tenths: 1 };
    let deny = tools::DENY.path(places)?.into_os_string();
    let law = |name: &str, words: &[&str]| {
        let command = std::iter::once(deny.clone()).chain(words.iter().map(OsString::from));
        let step = Step::new(name, quick).runs(command).needs(&[tools::DENY.step]);
        Step { directory: Some(workspace()), ..step }
    };
    Ok(vec![
        cargo("format", quick, &["fmt", "--all", "--check"]),
        cargo("lock", quick, &["metadata", "--locked", "--format-version", "1"]).quiet(),
        cargo(
            "fuzz-lock",
            quick,
            &["metadata", "--locked", "--format-version", "1", "--manifest-path", "fuzz/Cargo.toml"],
        )
        .quiet(),
        tool(tools::DENY),
        law("law", &["--workspace", "check", "bans", "licenses", "sources"]),
        Step::new("advisories", quick).runs(this(&["ci-part", "advisories"])).needs(&[tools::DENY.step]).minutes(1),
    ])
}

fn tool(tool: Tool) -> Step {
    // Istio's programs are a quarter of an hour of two cores, of which tools get what is left.
    let minutes = if tools::OF_MEASUREMENTS.contains(&tool) { 60 } else { 15 };
    Step::new(tool.step, Place::Behind).runs(this(&["ci-tool", tool.step])).minutes(minutes)
}

fn build() -> Step {
    cargo(BUILD, Place::Front { tenths: 20 }, &["test", "--workspace", "--no-run"]).minutes(35)
}

/// The program that the cluster's tests install: compiled already, and linked statically here. It comes before clippy, which
/// holds the lock of the directory that both write to.
fn image() -> Step {
    Step::new("image", Place::Front { tenths: 20 })
        .runs(this(&["image", "--profile", "dev"]))
        .needs(&[BUILD])
        .minutes(10)
}

const CLIPPY: [&str; 6] = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];

fn clippy() -> Vec<Step> {
    vec![cargo("clippy", Place::Behind, &CLIPPY).follows(&["image"]).minutes(30)]
}

fn clippy_at_once() -> Vec<Step> {
    vec![cargo("clippy", Place::Front { tenths: 20 }, &CLIPPY).minutes(30)]
}

fn cluster_programs() -> Vec<Step> {
    vec![
        Step::new("cluster-build", Place::Behind).runs(this(&["cluster", "build"])).minutes(60),
        Step::new("conformance-build", Place::Behind)
            .runs(this(&["conformance", "--build"]))
            .needs(&["cluster-build"])
            .minutes(30),
    ]
}

/// So many seconds for each target, with what earlier runs have found.
fn fuzz(places: &Places, seconds: u64) -> Vec<Step> {
    let run = |name: &str, place: Place, argument: &str| {
        let step = Step::new(name, place).runs([workspace().join("fuzz/run").into_os_string(), argument.into()]);
        step.with("CARGO_TARGET_DIR", places.fuzz().into_os_string())
    };
    vec![
        // After what others wait for.
        run("fuzz-build", Place::Behind, "build").follows(&["clippy", "conformance-build"]).minutes(40),
        run("fuzz", Place::Front { tenths: 20 }, &seconds.to_string()).needs(&["fuzz-build"]).minutes(5 + seconds / 3),
    ]
}

/// The test program that wants a cluster.
const CLUSTER_TESTS: &str = "cluster";

/// How test programs share the machine, where it is not one core each: those that wait more than they compute, and those that
/// look at what their own process takes of the machine.
const SHARES: [(&str, Place, &[&str]); 8] = [
    // More threads would only share two cores among more, and each test would take longer.
    ("leno/e2e", Place::Front { tenths: 12 }, &["--test-threads=3"]),
    ("leno-local/stage", Place::Front { tenths: 4 }, &[]),
    ("leno-lab/end_to_end", Place::Front { tenths: 4 }, &[]),
    ("leno-lab/churn", Place::Front { tenths: 4 }, &[]),
    ("leno-node/syscalls", Place::Alone, &[]),
    ("leno-waypoint/syscalls", Place::Alone, &[]),
    // Half a minute of waiting each.
    ("leno-tunnel/idle_memory", Place::Front { tenths: 1 }, &[]),
    ("leno-kubernetes", Place::Front { tenths: 1 }, &[]),
];

/// Test programs that use a tool, and so come after it is there.
const USERS_OF_TOOLS: [(&str, &[&str]); 5] = [
    ("leno/e2e", &["grpcurl"]),
    ("leno-install", &["helm"]),
    ("leno-node/hostile", &["h2spec"]),
    ("leno-node/mesh", &["configdump"]),
    ("leno-waypoint/mesh", &["h2spec"]),
];

/// Every test program but the cluster's.
fn tests(executables: &[Executable], places: &Places) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for executable in executables.iter().filter(|executable| executable.name != CLUSTER_TESTS) {
        steps.push(test(executable, places)?);
    }

    // The summary tells of all of them, so it comes after all of them.
    let names: Vec<_> = steps.iter().map(|step| step.name.clone()).collect();
    for step in steps.iter_mut().filter(|step| step.name.ends_with(SUMMARY)) {
        step.follows = names.iter().filter(|name| !name.ends_with(SUMMARY)).cloned().collect();
    }
    Ok(steps)
}

fn test(executable: &Executable, places: &Places) -> Result<Step> {
    let label = executable.label();
    let share = SHARES.iter().find(|(name, ..)| *name == label);
    let (place, arguments) = share.map_or((Place::Front { tenths: 8 }, &[][..]), |(_, place, words)| (*place, *words));
    let tools = USERS_OF_TOOLS.iter().find(|(name, _)| *name == label).map_or(&[][..], |(_, tools)| tools);

    let mut step = Step::new(&format!("test {label}"), place).needs(&[BUILD]).follows(tools).follows(&["image"]);
    step.command.push(executable.path.clone().into_os_string());
    step.command.extend(arguments.iter().map(OsString::from));
    as_cargo_does(&mut step, executable);
    if executable.has_harness {
        // How long each test takes. The harness has this for those who ask for what may change; nothing else is changed.
        step = step.with("RUSTC_BOOTSTRAP", "1");
        step.command.extend(["-Zunstable-options", "--report-time"].map(OsString::from));
    }
    find_programs(&mut step, &tools::OF_TESTS, places)?;
    Ok(step.minutes(20))
}

/// Tests find these programs, but for those that somebody named otherwise.
fn find_programs(step: &mut Step, tools: &[Tool], places: &Places) -> Result<()> {
    for tool in tools {
        let variables = tool.variables(places)?.into_iter();
        step.programs.extend(variables.filter(|(variable, _)| std::env::var_os(variable).is_none()));
    }
    Ok(())
}

/// Test programs that have tests beside programs of others, and which of their tests these are.
const BESIDE_OTHERS: [(&str, &[&str]); 4] =
    [("leno/e2e", &["many_svc"]), ("leno-lab", &["hop"]), ("leno-lab/end_to_end", &[]), ("leno-lab/fortio", &[])];

fn with_everything(mut step: Step, places: &Places) -> Result<Step> {
    find_programs(&mut step, &tools::OF_MEASUREMENTS, places)?;
    let names: Vec<_> = tools::OF_MEASUREMENTS.iter().map(|tool| tool.step).collect();
    Ok(step.follows(&names).minutes(60))
}

/// The tests of a program that say of themselves that they measure, one at a time and at full size.
fn measured(executable: &Executable, places: &Places) -> Result<Step> {
    let mut step = test(executable, places)?.with("LENO_SOAK", "1").minutes(60);
    step.name = format!("measured {}", executable.label());
    step.place = Place::Alone;
    step.command.extend(["--ignored", "--test-threads=1"].map(OsString::from));
    Ok(step)
}

/// Where cargo runs a test program, and with which variables.
fn as_cargo_does(step: &mut Step, executable: &Executable) {
    step.directory = Some(executable.directory.clone());
    step.environment.push(("CARGO_MANIFEST_DIR".to_owned(), executable.directory.clone().into_os_string()));
    let variables = executable.package.environment.iter();
    step.environment.extend(variables.map(|(name, value)| (name.clone(), value.into())));
}

fn demo() -> Step {
    Step::new("demo", Place::Front { tenths: 4 }).runs(this(&["ci-part", "demo"])).needs(&[BUILD]).minutes(3)
}

/// From a Python wheel and from a Debian package, where there is nothing else.
fn packages() -> Step {
    Step::new("packages", Place::Front { tenths: 4 }).runs(this(&["ci-part", "packages"])).needs(&["image"]).minutes(5)
}

/// The program of the release before, or of the commit before where there is none.
fn previous_image() -> Step {
    let step = Step::new("previous-image", Place::Behind).runs(this(&["ci-part", "previous-image"]));
    step.follows(&["image"]).minutes(40)
}

/// README's first command, from nothing.
fn first_command() -> Step {
    Step::new("first-command", Place::Alone).runs(this(&["ci-part", "first-command"])).minutes(40)
}

/// The step that runs the tests on the cluster.
const ON_CLUSTER: &str = "on-cluster";

/// How much of the Gateway API's conformance suite is run.
#[derive(Debug, Clone, Copy)]
enum Scope {
    /// What every mesh must do.
    Core,
    /// Every feature.
    All,
}

/// From the start of a cluster to its end. One that ran before is somebody's, and stays.
fn on_the_cluster(executables: &[Executable], tests: &[String], scope: Scope) -> Vec<Step> {
    let whole = Place::Front { tenths: 20 };
    let ran_before = cluster::is_running();
    let tests: Vec<_> = tests.iter().map(String::as_str).collect();
    let part = |name: &str, words: &[&str]| Step::new(name, whole).runs(this(words));

    let mut steps = Vec::new();
    if !ran_before {
        steps.push(
            part("cluster-kill", &["ci-part", "cluster-kill"])
                .needs(&["cluster-build"])
                .follows(&tests)
                .follows(&["demo", "packages"]),
        );
    }
    // After the tests: the processor is theirs until then.
    steps.push(
        part("cluster-up", &["cluster", "up"])
            .needs(&["cluster-build"])
            .follows(&["cluster-kill", "demo", "packages"])
            .follows(&tests),
    );
    let archive = workspace().join("target/image/leno.tar");
    steps.push(
        part("cluster-load", &["cluster", "load", &archive.display().to_string()]).needs(&["cluster-up", "image"]),
    );
    for executable in executables.iter().filter(|executable| executable.name == CLUSTER_TESTS) {
        let mut step = part(ON_CLUSTER, &["ci-part", "on-cluster"]).needs(&["cluster-load"]).minutes(30);
        step.command.push(executable.path.clone().into_os_string());
        as_cargo_does(&mut step, executable);
        steps.push(step.with("RUSTC_BOOTSTRAP", "1"));
    }
    let report = workspace().join("target/ci/conformance.yaml");
    let scope = match scope {
        Scope::Core => "core",
        Scope::All => "all",
    };
    steps.push(
        part("conformance", &["conformance", "--scope", scope, "--report", &report.display().to_string()])
            .needs(&["cluster-load", "conformance-build"])
            .follows(&[ON_CLUSTER])
            .minutes(8),
    );
    if !ran_before {
        steps.push(
            part("cluster-down", &["cluster", "down"]).needs(&["cluster-build"]).follows(&[ON_CLUSTER, "conformance"]),
        );
    }
    steps
}

/// Where a step's log is written. No two steps share one.
pub(super) fn log_of(step: &Step, directory: &Path) -> std::path::PathBuf {
    directory.join(format!("{}.log", step.name.replace(' ', "-").replace('/', ".")))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
