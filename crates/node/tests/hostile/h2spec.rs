//! Checks port 15008 with h2spec, which tests servers for conformance to HTTP/2 (RFC 7540, 7541).
//!
//! Runs where `LENO_H2SPEC` names it: `go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_testkit::hbone;
use leno_testkit::network::may_run;
use leno_testkit::skips::skip;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use crate::{ALONE, Target};

/// It takes eight seconds, most of them for cases that wait two seconds for something that never comes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Cases that a server which serves only CONNECT rightly fails: h2spec sends GET, HEAD and POST, which are refused at once by
/// headers that end the stream.
const RIGHT: [(&str, &str, &str); 3] = [
    (
        "generic/2",
        "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
        "the frame is accepted; h2spec wants to see that by DATA of an answer, and a refusal has none",
    ),
    (
        "generic/2",
        "Sends a PRIORITY frame on half-closed (remote) stream",
        "the frame is accepted; h2spec wants to see that by DATA of an answer, and a refusal has none",
    ),
    (
        "http2/4.2",
        "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE",
        "it sends 18 KB where 1 MiB was announced, which is allowed; with more than that, it passes (below)",
    ),
];

/// Cases that fail if the server is quick: h2spec sends a GET and expects its stream to be open when its next frames come,
/// but the refusal has ended it by then. The tests of `leno-tunnel` check the same rules with streams that stay open.
const RACES: [(&str, &str); 2] = [
    ("http2/5.1.2", "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"),
    (
        "http2/6.9.1",
        "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    ),
];

/// One of h2spec's cases.
#[derive(Debug)]
struct Case {
    section: String,
    what: String,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// It wants DATA of an answer to GET.
    Skipped,
}

impl Case {
    fn is(&self, section: &str, what: &str) -> bool {
        self.section == section && self.what == what
    }
}

/// The path of h2spec; `None`, with a message, if it is missing.
fn program(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("LENO_H2SPEC").map(PathBuf::from);
    if path.is_none() {
        skip(test, "needs LENO_H2SPEC=PATH of h2spec, a program of Go's");
    }
    path
}

/// Takes connections in the clear and carries each to the target over TLS, with a good certificate.
async fn bridge(listener: TcpListener, target: &Target) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut far = hbone::tls(target.tcp().await, Some(&target.good)).await.unwrap();
        tokio::spawn(async move { drop(copy_bidirectional(&mut near, &mut far).await) });
    }
}

/// Runs h2spec and gives the cases of its report.
async fn run(program: &Path, target: &Target, arguments: &[&str]) -> Vec<Case> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.xml");
    let mut command = Command::new(program);
    command.args(["--strict", "--host", "127.0.0.1", "--port", &port, "--junit-report"]).arg(&report).args(arguments);
    let ends = timeout(PATIENCE, command.kill_on_drop(true).output());
    let output = tokio::select! {
        output = ends => output.expect("h2spec ends").expect("LENO_H2SPEC names a program"),
        () = bridge(listener, target) => panic!("the bridge ends"),
    };
    let report = std::fs::read_to_string(report)
        .unwrap_or_else(|error| panic!("no report: {error}: {}", String::from_utf8_lossy(&output.stdout)));
    // Each case begins on a line of its own.
    let cases = report.split("<testcase ").skip(1).map(|case| {
        let attribute = |name: &str| {
            let (_, value) = case.split_once(&format!("{name}=\"")).expect("a JUnit report");
            value.split('"').next().unwrap_or_default().to_owned()
        };
        let has = |tag: &str| case.contains(&format!("<{tag}>"));
        let outcome = match () {
            () if has("error") || has("failure") => Outcome::Failed,
            () if has("skipped") => Outcome::Skipped,
            () => Outcome::Passed,
        };
        Case { section: attribute("package"), what: attribute("classname"), outcome }
    });
    cases.collect()
}

#[tokio::test]
async fn http2_is_as_h2spec_wants_it() {
    const NAME: &str = "http2_is_as_h2spec_wants_it";
    let Some(program) = program(NAME).filter(|_| may_run(NAME)) else { return };
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let cases = run(&program, &target, &[]).await;
    let number = |outcome| cases.iter().filter(|case| case.outcome == outcome).count();
    println!("{} passed, {} skipped, of {}", number(Outcome::Passed), number(Outcome::Skipped), cases.len());
    for (section, what, why) in RIGHT {
        let case = cases.iter().find(|case| case.is(section, what)).unwrap_or_else(|| panic!("{section}: {what}"));
        assert_eq!(case.outcome, Outcome::Failed, "{case:?} passes: take it off the list ({why})");
    }
    let known = |case: &&Case| {
        let races = RACES.iter().any(|race| case.is(race.0, race.1));
        races || RIGHT.iter().any(|right| case.is(right.0, right.1))
    };
    let wrong: Vec<_> = cases.iter().filter(|case| case.outcome == Outcome::Failed && !known(case)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cases.len() >= 146 && number(Outcome::Skipped) <= 4, "h2spec left out too much: {cases:#?}");

    // The announced frame size is 1 MiB, and this makes a header block of more.
    let large = run(&program, &target, &["http2/4.2", "--max-header-length", "300000"]).await;
    let (section, what, _) = RIGHT[2];
    let case = large.iter().find(|case| case.is(section, what)).unwrap_or_else(|| panic!("{large:?}"));
    assert_eq!(case.outcome, Outcome::Passed, "a frame over the announced size is an error of the connection");
    target.is_unharmed().await;
}
