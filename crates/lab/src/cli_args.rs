//! `leno lab`: what is typed, and what it starts.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use leno_kubernetes::{Client, Cluster};
use leno_local::names::StageName;
use tokio::sync::watch;

use crate::Error;
use crate::churn::Shape;
use crate::cluster::{self, Place};
use crate::report::{Report, text};
use crate::report_file;
use crate::run::{Alone, Progress, RunOptions, in_words, run};
use crate::scenario::{Application, Scenario, Size, all, clear_listeners, find};
use crate::subject::{SUBJECTS, Subject};

/// Rounds and seconds per step if nothing else is asked for.
const FULL: (usize, f64) = (5, 10.0);
/// The same with `--quick`: enough to see whether everything works.
const QUICK: (usize, f64) = (1, 2.0);
/// The same where control planes are measured as they are shipped: a minute has one of the rarer changes.
const MANY_SVC: (usize, f64) = (3, 60.0);
/// More rounds than this are a typing error: they would take weeks.
const ROUNDS: usize = 1000;
/// With more pods than this, addresses run out when each is replaced a few times.
const WORKLOADS: usize = 2_000_000;

/// Subcommands of `leno lab`.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Measure subjects side by side, in turns, and report medians, spreads and ratios
    #[command(after_help = "Examples:\n  \
        sudo leno lab run latency\n  \
        sudo leno lab run throughput --subject none --subject leno --subject ztunnel=/usr/local/bin/ztunnel --report out.html\n  \
        sudo leno lab run connections --quick\n  \
        leno lab run throughput --cluster --subject none --subject installed\n  \
        leno lab run churn --services 50 --proxies 100\n  \
        leno lab run many-svc --subject leno --subject istiod=/usr/local/bin/pilot-discovery --report many-svc.html\n\n\
        Takes minutes: subjects x rounds x steps x (duration + warm-up). The machine should do nothing else.")]
    Run(Box<RunArgs>),

    /// Remove what a run on a cluster left when it was killed
    #[command(after_help = "Examples:\n  leno lab clean\n  leno lab clean --context staging")]
    Clean(CleanArgs),

    /// Show a saved report again, on the terminal or as a page
    #[command(after_help = "Examples:\n  \
        leno lab report lab/results/2026-11-22-quiet/throughput.json\n  \
        leno lab report lab/results/2026-11-22-quiet/throughput.json --html throughput.html\n  \
        leno lab report throughput.html -o json | jq .results[0]")]
    Report(ReportArgs),

    /// List scenarios, their steps, and subjects
    List(ListArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// One JSON object, raw results included
    Json,
}

/// Settings of `leno lab list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// Settings of `leno lab report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// What `leno lab run` left: the JSON of `-o json`, or the page of `--report`
    pub file: PathBuf,

    /// Write it as a page, one HTML file, and print nothing
    #[arg(long, value_name = "FILE.html", conflicts_with = "output")]
    pub html: Option<PathBuf>,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// Settings of `leno lab run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// What to measure; see `leno lab list`
    pub scenario: String,

    /// What carries the traffic; give it several times. The first one is what ratios on the terminal refer to
    /// [default: none, floor and leno; for http, emojivoto and bookinfo none and leno; for churn and many-svc leno; with --cluster none and installed]
    #[arg(long = "subject", value_name = "NAME[=PATH]")]
    pub subjects: Vec<String>,

    /// How often each subject is measured [default: 5, for many-svc 3, with --quick 1]
    #[arg(long, value_parser = rounds)]
    pub rounds: Option<usize>,

    /// How long each step counts, as 10s, 500ms or 1m [default: 10s, for many-svc 1m, with --quick 2s]
    #[arg(long, value_parser = seconds)]
    pub duration: Option<f64>,

    /// One short round with fewer pods and connections: shows whether it works, not how fast it is
    #[arg(long)]
    pub quick: bool,

    /// Only steps with TEXT in their name, in whole words: across-nodes, 8-streams/send, open-loop/3500. See `leno lab list`
    #[arg(long = "step", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub only: Option<String>,

    /// Measure on a Kubernetes cluster instead of this machine, with pods of the lab's own
    #[arg(long)]
    pub cluster: bool,

    /// Which cluster, and with which image
    #[command(flatten)]
    pub place: PlaceArgs,

    /// The generated mesh of churn and many-svc
    #[command(flatten)]
    pub mesh: MeshArgs,

    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,

    /// Write the report as a page with plots, one HTML file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

/// Which cluster: kubectl's flags.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Where `leno lab run --cluster` measures.
#[derive(Debug, Clone, Default, Args)]
pub struct PlaceArgs {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// With --cluster: image of the lab's pods, with this version of leno [default: that of the installed Leno]
    #[arg(long, value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: Option<String>,
}

/// Settings of `leno lab clean`.
#[derive(Debug, Clone, Args)]
pub struct CleanArgs {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

impl ClusterArgs {
    fn chosen(&self) -> Cluster {
        Cluster { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }
}

impl PlaceArgs {
    fn is_given(&self) -> bool {
        self.image.is_some() || self.cluster.kubeconfig.is_some() || self.cluster.context.is_some()
    }
}

/// The generated mesh of the scenarios `churn` and `many-svc`. What is not given is as in the many-svc study.
#[derive(Debug, Clone, Default, Args)]
pub struct MeshArgs {
    /// churn, many-svc: services [default: 500, with --quick 20]
    #[arg(long, value_parser = at_least_one)]
    pub services: Option<usize>,

    /// churn, many-svc: pods of each service [default: 100, with --quick 10]
    #[arg(long, value_parser = at_least_one)]
    pub pods: Option<usize>,

    /// churn, many-svc: proxies, each on a node of its own [default: 1000, with --quick 10]
    #[arg(long, value_parser = at_least_one)]
    pub proxies: Option<usize>,

    /// churn, many-svc: changes per second [default: 1, with --quick 5]
    #[arg(long, value_name = "PER_SECOND", value_parser = per_second)]
    pub changes: Option<f64>,

    /// churn, many-svc: proxies that may be in their first sync at a time [default: 32]
    #[arg(long, value_parser = at_least_one)]
    pub arriving: Option<usize>,
}

impl MeshArgs {
    /// Puts what was given into `scenario`.
    fn apply(&self, scenario: &mut Scenario) -> Result<(), Error> {
        let Self { services, pods, proxies, changes, arriving } = *self;
        let Some(mesh) = &mut scenario.mesh else {
            let is_given = [services, pods, proxies, arriving].iter().any(Option::is_some) || changes.is_some();
            return if is_given {
                let name = scenario.name;
                let text = "--services, --pods, --proxies, --changes and --arriving are about the generated mesh of churn and \
                     many-svc";
                Err(Error::Usage(format!("{text}; {name} has none")))
            } else {
                Ok(())
            };
        };
        *mesh = Shape {
            services: services.unwrap_or(mesh.services),
            pods: pods.unwrap_or(mesh.pods),
            proxies: proxies.unwrap_or(mesh.proxies),
            changes: changes.unwrap_or(mesh.changes),
            arriving: arriving.unwrap_or(mesh.arriving),
        };
        if mesh.workloads() > WORKLOADS {
            let text = format!("{} services of {} pods are too many: a mesh has addresses", mesh.services, mesh.pods);
            return Err(Error::Usage(format!("{text} for {WORKLOADS} pods")));
        }
        Ok(())
    }
}

impl LabCommand {
    /// Does it. `program` is the binary that runs as every process of the lab, built from `commit`. Must be called before the process has a
    /// second thread: without root, it first becomes root of namespaces of its own.
    ///
    /// # Errors
    /// As [`run`]; and when a report can't be written.
    pub fn execute(&self, program: &Path, commit: Option<&str>) -> Result<(), Error> {
        match self {
            Self::List(args) => list(args.output),
            Self::Report(args) => args.execute(),
            Self::Clean(args) => args.execute(),
            Self::Run(args) => args.execute(program, commit),
        }
    }
}

impl RunArgs {
    fn options(&self, program: &Path) -> Result<RunOptions, Error> {
        let size = if self.quick { Size::Quick } else { Size::Full };
        let mut scenario = find(&self.scenario, size)?;
        let (rounds, seconds) = match (size, scenario.has_api_server) {
            (Size::Quick, _) => QUICK,
            (Size::Full, true) => MANY_SVC,
            (Size::Full, false) => FULL,
        };
        self.mesh.apply(&mut scenario)?;
        if !self.cluster && self.place.is_given() {
            let text = "--kubeconfig, --context and --image are about a cluster: give --cluster as well";
            return Err(Error::Usage(text.to_owned()));
        }
        let subjects = match (&self.subjects[..], &scenario.mesh) {
            ([], _) if self.cluster => vec![Subject::None, Subject::Installed],
            ([], None) if scenario.application.is_some() => vec![Subject::None, Subject::Leno(None)],
            ([], None) => vec![Subject::None, Subject::Floor, Subject::Leno(None)],
            ([], Some(_)) => vec![Subject::Leno(None)],
            (given, _) => given.iter().map(|text| Subject::parse(text)).collect::<Result<_, _>>()?,
        };
        let options = RunOptions {
            scenario,
            subjects,
            rounds: self.rounds.unwrap_or(rounds),
            seconds: self.duration.unwrap_or(seconds),
            size,
            only: self.only.clone().unwrap_or_default(),
            program: program.to_owned(),
            stage: StageName::new(crate::STAGE).map_err(|error| Error::Usage(error.to_string()))?,
            commit: None,
            command: std::env::args_os().map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" "),
        };
        if self.cluster {
            cluster::check(&options)?
        } else {
            drop(options.steps()?)
        }
        Ok(options)
    }

    fn execute(&self, program: &Path, commit: Option<&str>) -> Result<(), Error> {
        let options = RunOptions { commit: commit.map(str::to_owned), ..self.options(program)? };
        if let Some(path) = &self.report {
            report_file::check_writable(path)?;
        }
        let report = if self.cluster { self.on_cluster(&options)? } else { on_this_machine(&options)? };
        // A failure to write the report must not suppress the printed result, nor the other way round.
        let printed = show(&report, self.output);
        let written = self.report.as_deref().map_or(Ok(()), |path| report_file::write(path, &report));
        written.and(printed)
    }
}

impl RunArgs {
    fn on_cluster(&self, options: &RunOptions) -> Result<Report, Error> {
        let place = Place { cluster: self.place.cluster.chosen(), image: self.place.image.clone() };
        runtime(1)?.block_on(watched(async |stop, progress| cluster::run(options, &place, stop, progress).await))
    }
}

fn on_this_machine(options: &RunOptions) -> Result<Report, Error> {
    let _alone = Alone::claim(&options.stage)?;
    let is_stage = options.scenario.mesh.is_none();
    if options.has_waypoint_as_hop() {
        tell_proxies("LENO_WAYPOINT_CLEAR_LISTENERS", &clear_listeners());
    }
    if matches!(options.scenario.application, Some(Application::Http)) && std::env::var_os("RUST_LOG").is_none() {
        // The programs beside it write no access log, either.
        tell_proxies("RUST_LOG", "info,access=off");
    }
    if is_stage {
        leno_local::privilege::acquire().map_err(|error| Error::Privilege(error.into()))?;
    }
    // Where other processes make the load, one thread is enough. When a control plane is measured, this process is
    // all the proxies.
    let workers = if is_stage { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    runtime(workers)?.block_on(watched(async |stop, progress| run(options, stop, progress).await))
}

/// Gives a setting to the proxies of stages, which inherit this process's. With clear listeners, waypoints are hops.
#[allow(unsafe_code)]
#[expect(clippy::disallowed_methods, reason = "nobody else is there to read the environment meanwhile")]
fn tell_proxies(name: &str, value: &str) {
    // SAFETY: the process has one thread, see `LabCommand::execute`.
    unsafe { std::env::set_var(name, value) }
}

fn runtime(workers: usize) -> Result<tokio::runtime::Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().map_err(Error::io("cannot start a runtime"))
}

/// Runs with progress on the terminal, until it is done or a signal asks for the end.
async fn watched(
    run: impl AsyncFnOnce(watch::Receiver<bool>, &mut dyn FnMut(Progress)) -> Result<Report, Error>,
) -> Result<Report, Error> {
    let (interrupt, stop) = watch::channel(false);
    // From here on, no signal ends this process before everything is cleaned up.
    let interrupted = interrupted().map_err(Error::io("cannot wait for signals"))?;
    let signals = tokio::spawn(async move {
        interrupted.await;
        // When the run is over, nobody receives the signal any more.
        let _ = interrupt.send(true);
    });
    let mut terminal = Terminal { is_one: std::io::stderr().is_terminal(), waiting: false };
    let report = run(stop, &mut |progress| terminal.tell(progress)).await;
    terminal.clear();
    signals.abort();
    report
}

impl CleanArgs {
    fn execute(&self) -> Result<(), Error> {
        let removed = runtime(1)?.block_on(async {
            let client = Client::new(&self.cluster.chosen()).await.map_err(Error::cluster("cannot use the cluster"))?;
            cluster::clean(&client).await
        })?;
        print(&match self.output {
            Output::Text if removed => "what labs left in the cluster is removed\n".to_owned(),
            Output::Text => "no lab has left anything in the cluster\n".to_owned(),
            Output::Json => format!("{}\n", serde_json::json!({"removed": removed})),
        })
    }
}

impl ReportArgs {
    fn execute(&self) -> Result<(), Error> {
        let report = report_file::read(&self.file)?;
        match &self.html {
            Some(path) => report_file::write(path, &report),
            None => show(&report, self.output),
        }
    }
}

fn show(report: &Report, output: Output) -> Result<(), Error> {
    print(&match output {
        Output::Text => text(report),
        Output::Json => {
            let json = serde_json::to_string(report);
            json.map_err(|error| Error::io("cannot print the report")(error.into()))? + "\n"
        }
    })
}

/// Prints results to standard output. A reader that closes it early, as `head -1` does, is no failure.
fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Error::io("cannot write to standard output")),
    }
}

/// Waits for the first signal that asks for the end. Closing the terminal is one, except under `nohup`.
fn interrupted() -> std::io::Result<impl Future<Output = ()> + Send + use<>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = if is_ignored(libc::SIGHUP) { None } else { Some(signal(SignalKind::hangup())?) };
    let hung_up = async move {
        match &mut hangup {
            Some(hangup) => drop(hangup.recv().await),
            None => std::future::pending().await,
        }
    };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = hung_up => {}
            _ = quit.recv() => {}
        }
    })
}

/// Whether the parent process set this signal to be ignored: `SigIgn` of proc_pid_status(5).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Prints progress to standard error, because standard output is for results.
struct Terminal {
    /// Whether standard error is a terminal. Then a line shows what is going on, and is erased when that is done.
    is_one: bool,
    /// Whether such a line is visible.
    waiting: bool,
}

impl Terminal {
    fn tell(&mut self, progress: Progress) {
        self.clear();
        let line = match progress {
            Progress::Warning { text } => format!("warning: {text}\n"),
            Progress::Turn { subject, round, rounds, left_seconds } => {
                format!("round {round} of {rounds}: {subject} ({} left)\n", in_words(left_seconds))
            }
            Progress::Begins { step, left_seconds } if self.is_one => {
                self.waiting = true;
                format!("  {step} … ({} left)", in_words(left_seconds))
            }
            Progress::Begins { .. } => return,
            Progress::Stopping => "stopping; everything is removed\n".to_owned(),
            Progress::Step { step, summary } => format!("  {step}: {summary}\n"),
        };
        Self::write(&line);
    }

    /// Erases the line that shows what is going on.
    fn clear(&mut self) {
        if std::mem::take(&mut self.waiting) {
            // Return to the line's start and erase to its end (ECMA-48).
            Self::write("\r\x1b[K");
        }
    }

    fn write(text: &str) {
        // A closed terminal must not end a measurement.
        let mut out = std::io::stderr().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn list(output: Output) -> Result<(), Error> {
    let mut out = String::new();
    let scenarios = all(Size::Full);
    if output == Output::Json {
        let scenarios: Vec<_> = scenarios
            .iter()
            .map(|one| {
                let steps: Vec<_> = one
                    .steps
                    .iter()
                    .map(|step| serde_json::json!({ "name": step.name, "about": step.about }))
                    .collect();
                serde_json::json!({ "name": one.name, "about": one.about, "steps": steps })
            })
            .collect();
        let subjects = SUBJECTS.map(|(name, about)| serde_json::json!({ "name": name, "about": about }));
        out = serde_json::json!({ "scenarios": scenarios, "subjects": subjects }).to_string() + "\n";
    } else {
        out.push_str("Scenarios:\n");
        for one in &scenarios {
            out.push_str(&format!("\n  {}\n    {}\n", one.name, one.about));
            for step in &one.steps {
                out.push_str(&format!("      {:<34} {}\n", step.name, step.about));
            }
        }
        out.push_str("\nSubjects:\n\n");
        for (name, about) in SUBJECTS {
            out.push_str(&format!("  {name:<18} {about}\n"));
        }
    }
    print(&out)
}

/// Parses a number of at least one.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "write a number from 1 on".to_owned())
}

/// Parses a rate.
fn per_second(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.01..=1000.0).contains(rate));
    rate.ok_or_else(|| "write a number from 0.01 to 1000".to_owned())
}

/// Parses how often each subject is measured.
fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=ROUNDS) => Ok(number),
        Ok(0) => Err("without a round nothing is measured; it must be at least 1".to_owned()),
        _ => Err(format!("it must be a number from 1 to {ROUNDS}")),
    }
}

/// Parses a duration. The result is in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let (number, factor) = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("", 1.0)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1.0));
    match number.parse::<f64>() {
        Ok(number) if (0.1..=3600.0).contains(&(number * factor)) => Ok(number * factor),
        Ok(_) => Err("it must be from 100ms to 60m".to_owned()),
        Err(_) => Err("write it as 10s, 500ms or 1m".to_owned()),
    }
}

fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        command: LabCommand,
    }

    fn run_args(line: &str) -> Result<RunArgs, String> {
        match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.command {
            LabCommand::Run(args) => Ok(*args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn what_is_typed() {
        let args =
            run_args("lab run latency --subject none --subject ztunnel=/bin/sh --duration 500ms --quick").unwrap();
        let options = args.options(Path::new("/bin/true")).unwrap();
        assert_eq!((options.rounds, options.seconds, options.size), (1, 0.5, Size::Quick));
        assert_eq!(options.subjects.len(), 2);
        let defaults = run_args("lab run throughput").unwrap().options(Path::new("/bin/true")).unwrap();
        assert_eq!((defaults.rounds, defaults.seconds), (5, 10.0));
        assert_eq!(defaults.subjects, [Subject::None, Subject::Floor, Subject::Leno(None)]);
        let churn = run_args("lab run churn --pods 7 --changes 0.5").unwrap().options(Path::new("/bin/true")).unwrap();
        assert_eq!(churn.subjects, [Subject::Leno(None)]);
        assert_eq!(churn.scenario.mesh, Some(Shape { pods: 7, changes: 0.5, ..Shape::FULL }));
        let many = run_args("lab run many-svc --subject leno --subject istiod=/bin/sh").unwrap();
        let many = many.options(Path::new("/bin/true")).unwrap();
        assert_eq!((many.rounds, many.seconds, many.scenario.mesh), (3, 60.0, Some(Shape::FULL)));
        assert_eq!(many.subjects.len(), 2);
        assert!(run_args("lab run churn --proxies 0").unwrap_err().contains("from 1 on"));
        assert!(run_args("lab run churn --changes inf").unwrap_err().contains("from 0.01"));
        assert!(run_args("lab run nonsense").unwrap().options(Path::new("/bin/true")).is_err());
        assert!(run_args("lab run latency --duration 1h").unwrap_err().contains("10s, 500ms or 1m"));
        assert!(run_args("lab run latency --duration 1ms").unwrap_err().contains("from 100ms"));
        assert!(run_args("lab run latency --duration 0").unwrap_err().contains("from 100ms"));
        assert!(run_args("lab run latency --rounds 0").unwrap_err().contains("nothing is measured"));
        for rounds in ["-1", "x", "1001", "99999999999999999999999"] {
            let error = run_args(&format!("lab run latency --rounds={rounds}")).unwrap_err();
            assert!(error.contains("from 1 to 1000"), "{error}");
        }
    }

    /// Each case has its own message and is a usage error, found before anything is started.
    #[test]
    fn invalid_arguments_are_usage_errors() {
        for (line, text) in [
            ("lab run nonsense", "there is no scenario \"nonsense\"; there are throughput"),
            ("lab run latency --step nonsense", "no step of latency"),
            ("lab run latency --subject nonsense", "there is no subject \"nonsense\"; there are none"),
            ("lab run latency --subject leno --subject none --subject leno", "subject leno is given twice"),
            ("lab run latency --subject ztunnel=/bin/sh --subject ztunnel=/bin/ls", "subject ztunnel is given twice"),
            (
                "lab run throughput --step same-node --subject none --subject wireguard=/bin/sh",
                "nothing would be measured of wireguard: it leaves",
            ),
            ("lab run latency --pods 7", "latency has none"),
            ("lab run churn --pods 3000000", "too many"),
            ("lab run churn --subject none", "churn measures control planes"),
            ("lab run churn --subject istiod=/bin/sh", "churn measures control planes"),
            ("lab run many-svc --subject ztunnel=/bin/sh", "many-svc measures control planes"),
            ("lab run many-svc --subject istiod=/nowhere", "subject istiod: /nowhere cannot be used"),
            ("lab run many-svc --subject istiod=/etc/passwd", "chmod +x /etc/passwd"),
            ("lab run many-svc --subject istiod", "--subject istiod=/path/to/it"),
            ("lab run many-svc --services 19", "many-svc needs 20 services or more"),
            ("lab run latency --subject istiod=/bin/sh", "istiod is a control plane"),
            ("lab run latency --subject ztunnel=", "there is no path after the `=`"),
        ] {
            let error = run_args(line).unwrap().options(Path::new("/bin/true")).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(text), "{line}: {error}");
        }
    }

    #[test]
    fn printed_names_are_accepted_as_arguments() {
        assert_eq!(quote("--subject=a/b"), "--subject=a/b");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
