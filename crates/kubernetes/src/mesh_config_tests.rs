use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use leno_control::status::Findings;
use leno_control::translate::Options;
use leno_objects::ConfigMap;
use tokio::time::timeout;

use super::*;

/// Puts a version of the file into a directory as a kubelet does: the name leads through a link, which is replaced.
fn put(directory: &Path, version: &str, text: &str) {
    let data = directory.join(version);
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join("mesh"), text).expect("a file");
    symlink(version, directory.join("..data_tmp")).expect("a link");
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("a name");
    if !directory.join("mesh").is_symlink() {
        symlink("..data/mesh", directory.join("mesh")).expect("a link");
    }
}

struct Plane {
    directory: tempfile::TempDir,
    controller: Controller,
    found: Arc<Findings>,
}

impl Plane {
    fn new() -> Self {
        let found = Arc::new(Findings::default());
        let options = Options { mesh_config: key("mesh"), ..Options::default() };
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, controller: Controller::telling(options, found.clone()), found }
    }

    fn announce(&self) -> MeshConfigFile {
        MeshConfigFile::announce(self.directory.path().join("mesh"), "mesh", self.controller.clone())
    }

    fn entry(&self) -> Value {
        let entry = self.controller.with_store(|store| {
            let held = ConfigMap::get(store, "mesh", NAME).expect("a ConfigMap");
            held.data[MESH_CONFIG_ENTRY].clone()
        });
        serde_json::from_str(&entry).expect("JSON")
    }

    fn said(&self) -> String {
        let all: BTreeMap<_, _> = self.found.all();
        all.get(&key("mesh")).map(|status| status.findings().collect::<Vec<_>>().join("; ")).unwrap_or_default()
    }
}

const ONE: &str = "extensionProviders:\n- name: opa\n  envoyExtAuthzGrpc: {service: opa.auth, port: 9191}\n";

#[tokio::test(start_paused = true)]
async fn a_file_that_a_kubelet_replaces_is_followed() {
    let plane = Plane::new();
    put(plane.directory.path(), "..1", ONE);
    let file = plane.announce();
    plane.controller.publish();
    timeout(LOOK, plane.controller.ready()).await.expect("it keeps nothing waiting");
    assert_eq!(plane.entry()["extensionProviders"][0]["envoyExtAuthzGrpc"]["port"], 9191);

    let mut applied = plane.controller.applied();
    let running = tokio::spawn(file.run());
    let soon = LOOK * 2;
    // What stays the same changes nothing.
    applied.mark_unchanged();
    assert!(timeout(soon, applied.changed()).await.is_err());
    put(plane.directory.path(), "..2", &ONE.replace("9191", "9292"));
    timeout(soon, applied.changed()).await.expect("a look").expect("a controller");
    assert_eq!(plane.entry()["extensionProviders"][0]["envoyExtAuthzGrpc"]["port"], 9292);
    assert_eq!(plane.said(), "");

    put(plane.directory.path(), "..3", "extensionProviders: [");
    timeout(soon, applied.changed()).await.expect("a look").expect("a controller");
    assert!(plane.said().contains("data.mesh can't be read, so the providers of the last good"), "{}", plane.said());
    fs::remove_file(plane.directory.path().join("..data")).expect("a link");
    timeout(soon, applied.changed()).await.expect("a look").expect("a controller");
    assert!(plane.said().contains("/mesh: No such file"), "{}", plane.said());
    put(plane.directory.path(), "..4", ONE);
    timeout(soon, applied.changed()).await.expect("a look").expect("a controller");
    assert_eq!(plane.said(), "");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_there_is_told() {
    let plane = Plane::new();
    let file = plane.announce();
    plane.controller.publish();
    timeout(LOOK, plane.controller.ready()).await.expect("it keeps nothing waiting");
    assert!(plane.said().contains("No such file"), "{}", plane.said());
    drop(file);
}
