//! README's quickstart on a cluster, word by word, and the sample application that it uses.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leno_e2e::{Cluster, Leno};
use leno_testkit::page_text::{Place, Step, matches, steps};

/// Commands that change nothing. What they are to show may take a moment; a reader is slower than a test.
const LOOKS: [&str; 3] = ["leno observe", "leno status", "leno explain"];

/// Runs every session of README that takes place on a cluster.
pub(crate) fn readme(cluster: &Cluster, leno: &Leno) {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let steps = steps(&text, Place::Cluster);
    assert!(!steps.is_empty(), "README shows no session on a cluster");
    let begin = Instant::now();
    for step in &steps {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Some(fault) = fault(cluster, leno, step) {
            let looks = LOOKS.iter().any(|look| step.command.starts_with(look));
            assert!(looks && Instant::now() < deadline, "README: {fault}");
        }
    }
    cluster.kubectl().run(&["delete", "namespace", "emojivoto"]).unwrap();
    eprintln!("README's session on a cluster: {:.1} s", begin.elapsed().as_secs_f64());
}

/// What is wrong with one step; `None` if it prints what the page shows.
fn fault(cluster: &Cluster, leno: &Leno, step: &Step) -> Option<String> {
    let words: Vec<_> = step.command.split_whitespace().collect();
    let mut command: Command = match &words[..] {
        ["leno", arguments @ ..] => leno.command(arguments),
        ["kubectl", arguments @ ..] => cluster.kubectl().command(arguments),
        _ => {
            return Some(format!(
                "`{}` is neither leno nor kubectl: show it in a block that is not `console`",
                step.command
            ));
        }
    };
    let ran = command.current_dir(root()).stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&ran.stdout);
    if ran.status.success() && matches(&step.prints, &printed) {
        return None;
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Some(format!(
        "`{}` ends with {} and prints\n{printed}{said}\nwhere the page has\n{}",
        step.command,
        ran.status,
        step.prints.join("\n")
    ))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A cluster has its own nodes, fetches images, and is enrolled by a command. Apart from that both samples are the same.
#[test]
fn the_sample_for_clusters_is_the_one_for_stages() {
    let stage = root().join("samples/emojivoto");
    let mut files: Vec<_> = std::fs::read_dir(stage).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The namespace before what is in it.
    files.sort_by_key(|file| (!file.ends_with("namespace.yaml"), file.clone()));
    let mut expected = Vec::new();
    for file in files {
        expected.push("---".to_owned());
        let text = std::fs::read_to_string(file).unwrap();
        // The namespace's own labels are its last lines.
        expected.extend(text.lines().take_while(|line| *line != "  labels:").filter_map(for_a_cluster));
    }
    let path = root().join("samples/emojivoto-cluster/emojivoto.yaml");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let expected = expected[1..].join("\n") + "\n";
    if found != expected {
        let new = std::env::temp_dir().join("emojivoto.yaml");
        std::fs::write(&new, expected).unwrap();
        panic!("{} is not what samples/emojivoto says; {} is", path.display(), new.display());
    }
}

/// A line of the stage's sample; `None` if a cluster's has no such.
fn for_a_cluster(line: &str) -> Option<String> {
    let image = concat!("image: localhost/leno:", env!("CARGO_PKG_VERSION"));
    let here = !line.contains("nodeName:") && !line.starts_with('#');
    here.then(|| line.replace("image: leno", image))
}
