//! Mistakes in input: each refusal names the place, the reason and the remedy.

use crate::stage::{Stage, eventually, leno, run, skip};
use crate::topology;

/// Each case: what it is, the manifest, and the words the error must contain.
const REFUSED: &[(&str, &str, &[&str])] = &[
    ("no YAML", "kind: [", &["bad.yaml:1"]),
    ("no kind", "apiVersion: v1\nmetadata: {name: a}\n", &["bad.yaml", "kind"]),
    (
        "an unknown field",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replica: 2\n",
        &["bad.yaml:5", "replica", "replicas"],
    ),
    (
        "a duplicate name",
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n",
        &["bad.yaml", "twice"],
    ),
    (
        "a node there is not",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: node-9, containers: [{name: a, command: [sleep, '9']}]}\n",
        &["bad.yaml", "node-9", "node-1"],
    ),
    (
        "an image without a command",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: nginx}]}\n",
        &["bad.yaml", "command"],
    ),
    (
        "a bad address block",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec: {rules: [{from: [{source: {ipBlocks: [10.0.0.0/99]}}]}]}\n",
        &["bad.yaml", "10.0.0.0/99"],
    ),
    (
        "a port out of range",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {a: b}, ports: [{port: 70000}]}\n",
        &["bad.yaml", "70000"],
    ),
];

#[test]
fn a_bad_manifest_is_refused_with_file_and_reason() {
    for (what, text, words) in REFUSED {
        let stage = Stage::prepare(&[("bad.yaml", text)]);
        let ran = run(stage.up_command(&[]));
        assert_ne!(ran.code, 0, "{what} was accepted");
        for word in *words {
            assert!(ran.stderr.contains(word), "{what}: no {word:?} in: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    }
}

#[test]
fn a_bad_edit_leaves_the_last_good_state() {
    if skip("a_bad_edit_leaves_the_last_good_state", &[]) {
        return;
    }
    let stage = topology::up(&[], &[]);
    stage.write(
        "more.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: mesh}\nspec: {containres: []}\n",
    );
    let complaint = eventually("the edit to be refused", || {
        let log = run(&mut stage.command("logs")).stdout;
        log.lines().find(|l| l.contains("containres")).map(str::to_owned).ok_or(log)
    });
    assert!(complaint.contains("more.yaml:4"), "{complaint}");
    stage.exec("mesh/far", &["true"]).ok();
    stage.write("more.yaml", &topology::client("mesh", "late", "node-2"));
    stage.wait("the mended edit", |ps| {
        ps["pods"].as_array()?.iter().find(|p| p["name"] == "late" && p["ready"] == true).map(|_| ())
    });
}

#[test]
fn kinds_that_are_not_understood_are_named() {
    if skip("kinds_that_are_not_understood_are_named", &[]) {
        return;
    }
    let text = format!("{}---\napiVersion: v1\nkind: Moon\nmetadata: {{name: a}}\n", topology::NAMESPACES);
    let stage = Stage::prepare(&[("all.yaml", &text)]);
    let ran = run(stage.up_command(&[])).ok();
    assert!(
        ran.stderr.contains("Moon default/a (v1) is not understood and ignored") && ran.stderr.contains("all.yaml"),
        "{}",
        ran.stderr
    );
}

#[test]
fn dangling_references_are_named() {
    if skip("dangling_references_are_named", &[]) {
        return;
    }
    let text = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {serviceAccountName: ghost, containers: [{name: a, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
";
    let stage = Stage::prepare(&[("all.yaml", text)]);
    let ran = run(stage.up_command(&[])).ok();
    for (name, line) in [("ghost", "all.yaml:2"), ("nobody", "all.yaml:7")] {
        assert!(ran.stderr.lines().any(|l| l.contains(name) && l.contains(line)), "no {name} in {}", ran.stderr);
    }
}

#[test]
fn wrong_words_on_the_command_line_are_answered_with_usage() {
    for argv in [&["upp"][..], &["up"], &["up", "-f", "/nonexistent"], &["exec"], &["scale", "a"], &["explain", "a"]] {
        let ran = run(leno().args(argv));
        assert_ne!(ran.code, 0, "{argv:?}");
        assert!(!ran.stderr.is_empty() && !ran.stderr.contains("panicked"), "{argv:?}: {}", ran.stderr);
    }
    let ran = run(leno().args(["up", "-f", "/nonexistent"]));
    assert!(ran.stderr.contains("/nonexistent"), "{}", ran.stderr);
}

#[test]
fn what_the_lab_does_not_know_is_wrong_usage() {
    for (argv, word) in [
        (&["run", "nonsense"][..], "throughput"),
        (&["run", "latency", "--step", "nonsense"], "closed-loop"),
        (&["run", "latency", "--subject", "nonsense"], "floor"),
        (&["run", "latency", "--subject", "ztunnel=/nonexistent"], "/nonexistent"),
        (&["run", "latency", "--rounds", "0"], "nothing is measured"),
    ] {
        let ran = run(leno().arg("lab").args(argv));
        assert_eq!(ran.code, 2, "{argv:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word) && ran.stdout.is_empty(), "{argv:?}: {}", ran.stderr);
    }
}

#[test]
fn a_reader_that_closes_the_labs_output_is_no_failure() {
    for format in ["text", "json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = leno();
        let output = command.args(["lab", "list", "-o", format]).stdout(writer).output().expect("leno runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{format}: {output:?}");
    }
}

/// Its mounts are another one's, and the kernel lets nobody make them private.
#[test]
fn in_a_plain_chroot_it_is_said_how_to_make_one_that_works() {
    if skip("in_a_plain_chroot_it_is_said_how_to_make_one_that_works", &["unshare", "mount", "chroot"]) {
        return;
    }
    let stage = Stage::prepare(&[("all.yaml", &topology::text(&[]))]);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_leno"));
    let programs = program.parent().unwrap();
    // The mounts go with the shell's namespace.
    let lines = r#"
set -e
mkdir "$1/root"
for dir in /usr /bin /lib /lib64 /etc /proc /dev /run "$2"; do
    [ -e "$dir" ] || continue
    mkdir -p "$1/root$dir"
    mount --rbind "$dir" "$1/root$dir"
done
exec chroot "$1/root" "$2/leno" up --name "$3" --nodes 1 -f /run"#;
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--mount", "sh", "-c", lines, "sh"]).arg(stage.dir.path()).arg(programs).arg(stage.name());
    let ran = run(&mut shell);
    assert_eq!(ran.code, 1, "{ran:?}");
    for word in ["is no mount point, as in a plain chroot", "mount --rbind DIR DIR"] {
        assert!(ran.stderr.contains(word), "no {word:?} in: {}", ran.stderr);
    }
}
