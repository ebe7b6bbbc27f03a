//! What each tier of `.ci/run` does, as a list of steps.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use super::executables::Executable;
use super::places::{Places, workspace};
use super::step::{Place, Step};
use super::tools::{self, Tool};
use crate::cluster;

/// Which checks are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Tier {
    /// Before every change: everything but what needs a machine of its own
    All,
    /// Lock file, format, clippy and dependency law only
    Lint,
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
            [gathering(places), compiled, cluster_programs(), lint(places)?, clippy(), fuzz(places)].concat()
        }
        Tier::Lint => [lint(places)?, clippy_at_once()].concat(),
        Tier::Measured => [gathering(places), vec![build()]].concat(),
        Tier::Dist => {
            vec![cargo("dist", Place::Front { tenths: 20 }, &[]).runs(this(&["ci-part", "dist"])).minutes(85)]
        }
    })
}

/// Steps that are known when the tests are compiled.
pub(super) fn after_the_build(tier: Tier, executables: &[Executable], places: &Places) -> Result<Vec<Step>> {
    match tier {
        Tier::All => {
            let mut steps = Vec::new();
            for executable in executables.iter().filter(|executable| executable.name != CLUSTER_TESTS) {
                steps.push(test(executable, places)?);
            }
            let names: Vec<_> = steps.iter().map(|step| step.name.clone()).collect();
            // It tells of all of them, so it comes after all of them.
            for step in steps.iter_mut().filter(|step| step.name.ends_with(SUMMARY)) {
                step.follows = names.iter().filter(|name| !name.ends_with(SUMMARY)).cloned().collect();
            }
            steps.extend([demo(), packages()]);
            steps.extend(on_the_cluster(executables, &names));
            Ok(steps)
        }
        Tier::Measured => {
            let mut steps = Vec::new();
            for executable in executables.iter().filter(|executable| executable.name != CLUSTER_TESTS) {
                let mut step = test(executable, places)?.with("LENO_SOAK", "1").minutes(60);
                step.name = format!("measured {}", executable.label());
                step.place = Place::Alone;
                step.command.extend(["--ignored", "--test-threads=1"].map(OsString::from));
                steps.extend(executable.has_harness.then_some(step));
            }
            steps.push(first_command());
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
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let command = std::iter::once(cargo).chain(words.iter().map(OsString::from));
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

/// Programs that tests want and no package has.
fn gathering(_places: &Places) -> Vec<Step> {
    tools::OF_TESTS.into_iter().map(tool).collect()
}

fn tool(tool: Tool) -> Step {
    Step::new(tool.step, Place::Behind).runs(this(&["ci-tool", tool.step])).minutes(15)
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

/// Ten seconds each, with what earlier runs have found.
fn fuzz(places: &Places) -> Vec<Step> {
    let run = |name: &str, place: Place, argument: &str| {
        let step = Step::new(name, place).runs([workspace().join("fuzz/run").into_os_string(), argument.into()]);
        step.with("CARGO_TARGET_DIR", places.fuzz().into_os_string())
    };
    vec![
        // After what others wait for.
        run("fuzz-build", Place::Behind, "build").follows(&["clippy", "conformance-build"]).minutes(40),
        run("fuzz", Place::Front { tenths: 20 }, "10").needs(&["fuzz-build"]).minutes(10),
    ]
}

/// The test program that wants a cluster.
const CLUSTER_TESTS: &str = "cluster";

/// How test programs share the machine, where it is not one core each: those that wait more than they compute, and those that
/// look at what their own process takes of the machine.
const SHARES: [(&str, Place, &[&str]); 9] = [
    ("leno/e2e", Place::Front { tenths: 12 }, &["--test-threads=5"]),
    ("leno-local/stage", Place::Front { tenths: 4 }, &[]),
    ("leno-lab/end_to_end", Place::Front { tenths: 4 }, &[]),
    ("leno-lab/churn", Place::Front { tenths: 4 }, &[]),
    ("leno-node/footprint", Place::Alone, &[]),
    ("leno-node/soak", Place::Alone, &[]),
    ("leno-node/syscalls", Place::Alone, &[]),
    ("leno-waypoint/syscalls", Place::Alone, &[]),
    ("leno-tunnel/idle_memory", Place::Alone, &[]),
];

/// Test programs that use a tool, and so come after it is there.
const USERS_OF_TOOLS: [(&str, &[&str]); 5] = [
    ("leno/e2e", &["grpcurl"]),
    ("leno-install", &["helm"]),
    ("leno-node/hostile", &["h2spec"]),
    ("leno-node/mesh", &["configdump"]),
    ("leno-waypoint/mesh", &["h2spec"]),
];

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
    for tool in tools::OF_TESTS {
        if std::env::var_os(tool.variable).is_none() {
            step.programs.push((tool.variable.to_owned(), tool.path(places)?));
        }
    }
    Ok(step.minutes(20))
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
    Step::new("packages", Place::Front { tenths: 8 }).runs(this(&["ci-part", "packages"])).needs(&["image"]).minutes(5)
}

/// README's first command, from nothing.
fn first_command() -> Step {
    Step::new("first-command", Place::Alone).runs(this(&["ci-part", "first-command"])).minutes(40)
}

/// From the start of a cluster to its end. One that ran before is somebody's, and stays.
fn on_the_cluster(executables: &[Executable], tests: &[String]) -> Vec<Step> {
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
        let mut step = part("on-cluster", &["ci-part", "on-cluster"]).needs(&["cluster-load"]).minutes(30);
        step.command.push(executable.path.clone().into_os_string());
        as_cargo_does(&mut step, executable);
        steps.push(step.with("RUSTC_BOOTSTRAP", "1"));
    }
    let report = workspace().join("target/ci/conformance.yaml");
    steps.push(
        part("conformance", &["conformance", "--scope", "core", "--report", &report.display().to_string()])
            .needs(&["cluster-load", "conformance-build"])
            .follows(&["on-cluster"])
            .minutes(8),
    );
    if !ran_before {
        steps.push(
            part("cluster-down", &["cluster", "down"])
                .needs(&["cluster-build"])
                .follows(&["on-cluster", "conformance"]),
        );
    }
    steps
}

/// Where a step's log is written.
pub(super) fn log_of(step: &Step, directory: &Path) -> std::path::PathBuf {
    directory.join(format!("{}.log", step.name.replace(['/', ' '], "-")))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
