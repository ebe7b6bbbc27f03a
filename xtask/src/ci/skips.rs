//! Which tests may be skipped: those that want what this machine can't have, or a program that nobody named.

use std::collections::BTreeSet;

/// What a test prints before its name and its reason when it does not run.
const MARK: &str = "SKIP ";

/// A test may be skipped for want of the program that this variable names while the variable is unset.
const NAMED_BY_A_VARIABLE: [&str; 10] = [
    "LENO_ZTUNNEL",
    "LENO_ENVOY",
    "LENO_FORTIO",
    "LENO_ISTIOD",
    "LENO_ISTIO_CNI",
    "LENO_ISTIO_CRDS",
    "LENO_PREVIOUS_IMAGE",
    "LENO_H2SPEC",
    "LENO_GRPCURL",
    "LENO_CONFIGDUMP",
];

/// What decides whether this machine could have run a test.
#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    pub(super) is_root: bool,
    pub(super) cores: usize,
    /// The kernel offers BBR.
    pub(super) has_bbr: bool,
    /// The kernel hands connections that wait at a closing listener to another one.
    pub(super) has_migration: bool,
    /// The kernel's first two numbers.
    pub(super) kernel: (u32, u32),
    /// There is a `helm` on the path.
    pub(super) has_helm: bool,
    /// Variables that are set and not empty.
    pub(super) set: BTreeSet<String>,
}

/// What the logs of a run say of skipped tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Skips {
    /// `name: reason` of those that this machine can't help.
    pub(super) allowed: Vec<String>,
    /// Of those that it could have run.
    pub(super) refused: Vec<String>,
}

/// Judges every line of a log on which a test says that it was skipped.
pub(super) fn judge(log: &str, machine: &Machine) -> Skips {
    let lines: BTreeSet<&str> = log.lines().filter_map(|line| Some(line.split_once(MARK)?.1)).collect();
    let mut skips = Skips::default();

    for line in lines {
        match excuse(line, machine) {
            Excuse::Good => skips.allowed.push(line.to_owned()),
            Excuse::RunsLater => {}
            Excuse::None => skips.refused.push(line.to_owned()),
        }
    }
    skips
}

enum Excuse {
    Good,
    /// On the cluster that a later step starts.
    RunsLater,
    None,
}

fn excuse(line: &str, machine: &Machine) -> Excuse {
    let is_set = |name: &str| machine.set.contains(name);
    // One name may begin another: LENO_ISTIOD does not stand for LENO_ISTIO_CNI, nor the other way round.
    let names =
        |variable: &str| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == variable);

    if line.contains("cargo xtask cluster up") {
        return Excuse::RunsLater;
    }
    let good = NAMED_BY_A_VARIABLE.iter().any(|name| names(name) && !is_set(name))
        || (names("LENO_HELM") && !is_set("LENO_HELM") && !machine.has_helm)
        || (line.contains("this cluster is not this machine's") && is_set("LENO_KUBECONFIG"))
        || (line.contains("nodes don't see this machine's files") && is_set("LENO_KUBECONFIG"))
        || (line.contains("this kernel has no BBR") && !machine.has_bbr)
        || (line.contains("this kernel hands on nothing that waits at a listener") && !machine.has_migration)
        || wanted_kernel(line).is_some_and(|wanted| machine.kernel < wanted)
        || (line.contains("this machine has one core") && machine.cores == 1)
        || (line.contains("needs root") && !machine.is_root);
    if good { Excuse::Good } else { Excuse::None }
}

/// The version that a test wants: "needs Linux 6.15".
fn wanted_kernel(line: &str) -> Option<(u32, u32)> {
    kernel_version(line.split_once("needs Linux ")?.1)
}

/// The first two numbers of a kernel's version.
pub(super) fn kernel_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(set: &[&str]) -> Machine {
        let set = set.iter().map(|name| (*name).to_owned()).collect();
        Machine { is_root: true, cores: 2, has_bbr: true, has_migration: true, kernel: (6, 18), has_helm: false, set }
    }

    fn is_allowed(line: &str, machine: &Machine) -> bool {
        let skips = judge(&format!("running\nSKIP {line}\nSKIP {line}\n"), machine);
        assert_eq!(skips.allowed.len() + skips.refused.len(), 1, "{skips:?}");
        skips.refused.is_empty()
    }

    #[test]
    fn a_test_may_lack_what_nobody_named_and_nothing_else() {
        let line = "a: set LENO_ZTUNNEL=PATH to a ztunnel binary";
        assert!(is_allowed(line, &machine(&[])));
        assert!(!is_allowed(line, &machine(&["LENO_ZTUNNEL"])));
        assert!(!is_allowed("a: nginx is not installed", &machine(&[])));
        assert!(!is_allowed("a: set LENO_ISTIOD=PATH", &machine(&["LENO_ISTIOD"])));
        assert!(is_allowed("a: set LENO_ISTIO_CNI=PATH", &machine(&["LENO_ISTIOD"])));
    }

    #[test]
    fn helm_may_be_on_the_path_instead() {
        let line = "charts: set LENO_HELM=PATH to helm";
        assert!(is_allowed(line, &machine(&[])));
        assert!(!is_allowed(line, &Machine { has_helm: true, ..machine(&[]) }));
    }

    #[test]
    fn the_machine_excuses_what_it_really_lacks() {
        let all = machine(&[]);
        for (line, lacking) in [
            ("a: needs root, socat is not installed", Machine { is_root: false, ..all.clone() }),
            ("a: this kernel has no BBR", Machine { has_bbr: false, ..all.clone() }),
            (
                "a: this kernel hands on nothing that waits at a listener",
                Machine { has_migration: false, ..all.clone() },
            ),
            ("a: needs Linux 6.15", Machine { kernel: (6, 9), ..all.clone() }),
            ("a: this machine has one core", Machine { cores: 1, ..all.clone() }),
            ("a: this cluster is not this machine's", machine(&["LENO_KUBECONFIG"])),
        ] {
            assert!(is_allowed(line, &lacking), "{line}");
            assert!(!is_allowed(line, &all), "{line}");
        }
    }

    #[test]
    fn what_runs_on_the_cluster_later_is_not_told() {
        let log = "SKIP leno_in_the_cluster: no cluster runs; `cargo xtask cluster up` starts one (as root)\n";
        assert_eq!(judge(log, &machine(&[])), Skips::default());
    }
}
