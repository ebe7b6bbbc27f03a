use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use tempfile::TempDir;

use super::*;

const PRIMARY: &str = "{\n  \"name\": \"net\",\n  \"plugins\": [\n    {\"type\": \"bridge\"}\n  ]\n}\n";

struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap() };
        for dir in ["net.d", "bin"] {
            fs::create_dir(node.path(dir)).unwrap();
        }
        fs::write(node.path("bin/bridge"), "").unwrap();
        fs::write(node.path("leno"), "the program").unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn installer(&self) -> Installer {
        let paths = Paths { socket: "/s".into(), state_file: "/f".into(), agent_namespace: "leno-system".into() };
        Installer::new(self.path("net.d"), self.path("bin"), self.path("leno"), &paths)
    }

    fn plugins(&self, name: &str) -> Vec<String> {
        let value: Value = serde_json::from_str(&self.read(name)).unwrap();
        value["plugins"].as_array().unwrap().iter().map(|p| p["type"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn it_waits_for_a_network_installs_and_leaves_no_trace() {
    let node = Node::new();
    let mut installer = node.installer();
    assert!(matches!(installer.look(), Err(Trouble::NoConfig(_))));
    assert!(!node.path("bin/leno-cni").exists());
    // What other programs leave there.
    fs::write(node.path("net.d/README"), "no").unwrap();
    fs::write(node.path("net.d/.10-net.conflist.tmp"), PRIMARY).unwrap();
    assert!(matches!(installer.look(), Err(Trouble::NoConfig(_))));
    fs::write(node.path("net.d/10-net.conflist"), PRIMARY).unwrap();
    fs::set_permissions(node.path("net.d/10-net.conflist"), fs::Permissions::from_mode(0o600)).unwrap();

    let looked = installer.look().unwrap();
    assert_eq!(looked, Looked { config: node.path("net.d/10-net.conflist"), changed: true });
    assert_eq!(node.plugins("net.d/10-net.conflist"), ["bridge", "leno-cni"]);
    assert_eq!(fs::metadata(node.path("net.d/10-net.conflist")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(node.read("bin/leno-cni"), "the program");
    assert_eq!(fs::metadata(node.path("bin/leno-cni")).unwrap().mode() & 0o777, 0o755);
    assert!(!installer.look().unwrap().changed);
    assert!(!node.installer().look().unwrap().changed, "the next agent finds it done");

    installer.remove().unwrap();
    assert_eq!(node.read("net.d/10-net.conflist"), PRIMARY);
    assert!(!node.path("bin/leno-cni").exists());
    let left: Vec<_> = fs::read_dir(node.path("net.d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    installer.remove().unwrap();
}

#[test]
fn what_another_writer_undoes_is_done_again() {
    let node = Node::new();
    let mut installer = node.installer();
    let config = "net.d/10-net.conflist";
    fs::write(node.path(config), PRIMARY).unwrap();
    installer.look().unwrap();
    fs::write(node.path(config), PRIMARY).unwrap();
    assert!(installer.look().unwrap().changed);
    assert_eq!(node.plugins(config), ["bridge", "leno-cni"]);
    fs::write(node.path("bin/leno-cni"), "another ver").unwrap();
    assert!(installer.look().unwrap().changed);
    assert_eq!(node.read("bin/leno-cni"), "the program");
    fs::remove_file(node.path("bin/leno-cni")).unwrap();
    assert!(installer.look().unwrap().changed);
    fs::write(node.path("leno"), "the next version").unwrap();
    assert!(node.installer().look().unwrap().changed);
    assert_eq!(node.read("bin/leno-cni"), "the next version");
}

#[test]
fn the_entry_follows_the_configuration_that_the_runtime_uses() {
    let node = Node::new();
    let mut installer = node.installer();
    fs::write(node.path("net.d/20-net.conflist"), PRIMARY).unwrap();
    installer.look().unwrap();
    fs::write(node.path("net.d/10-other.conflist"), PRIMARY).unwrap();
    installer.look().unwrap();
    assert_eq!(node.plugins("net.d/10-other.conflist"), ["bridge", "leno-cni"]);
    assert_eq!(node.read("net.d/20-net.conflist"), PRIMARY);
    // A file that no runtime can read is passed over by it.
    fs::write(node.path("net.d/05-broken.conflist"), "{").unwrap();
    assert_eq!(installer.look().unwrap().config, node.path("net.d/10-other.conflist"));
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let node = Node::new();
    let mut installer = node.installer();
    fs::write(node.path("net.d/10-net.conf"), "{\"type\": \"bridge\"}").unwrap();
    let trouble = installer.look().unwrap_err().to_string();
    assert!(
        trouble.contains("10-net.conf is what the container runtime uses") && trouble.contains(".conflist"),
        "{trouble}"
    );
    fs::remove_file(node.path("net.d/10-net.conf")).unwrap();

    fs::write(node.path("net.d/10-net.conflist"), PRIMARY).unwrap();
    fs::remove_file(node.path("bin/bridge")).unwrap();
    let trouble = installer.look().unwrap_err();
    assert!(!trouble.is_retryable() && trouble.to_string().contains("--cni-bin-dir"), "{trouble}");
    assert_eq!(node.read("net.d/10-net.conflist"), PRIMARY, "an entry without a binary would stop every pod");
    fs::write(node.path("bin/bridge"), "").unwrap();

    let mut lost = Installer { net_dir: node.path("nowhere"), ..node.installer() };
    let trouble = lost.look().unwrap_err();
    assert!(!trouble.is_retryable() && trouble.to_string().contains("--cni-net-dir"), "{trouble}");

    let read_only =
        Trouble::File { what: "can't write", path: "/x".into(), source: io::ErrorKind::ReadOnlyFilesystem.into() };
    assert!(read_only.to_string().ends_with("; mount the directory read-write"), "{read_only}");
}
