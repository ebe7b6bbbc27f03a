use std::collections::BTreeMap;
use std::io::Read as _;

use super::*;
use crate::elf::tests::program;

/// The files of an archive, by path, after the checks that hold for each of them.
fn unpacked(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().expect("an archive").map(|entry| {
        let mut entry = entry.expect("an entry");
        let header = entry.header();
        let [mtime, uid, gid] = [header.mtime(), header.uid(), header.gid()].map(|number| number.expect("a number"));
        assert_eq!([mtime, uid, gid], [0; 3], "it tells of no time and of no user");
        let path = entry.path().expect("a path").to_str().expect("UTF-8").to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("its content");
        (path, content)
    });
    entries.collect()
}

fn image(program: &[u8]) -> Result<Image> {
    let labels = &[("org.opencontainers.image.title", "leno")];
    let image = "localhost/leno:0.1.0";
    Image::new(&Content { image, file: "leno", program, beside: &[], user: Some("65532:65532"), labels })
}

fn written(program: &[u8]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made/leno.tar");
    let size = image(program).expect("an image").write(&path).expect("an archive");
    let bytes = fs::read(&path).expect("the archive");
    assert_eq!(bytes.len() as u64, size);
    assert_eq!(fs::read_dir(path.parent().expect("a directory")).expect("its entries").count(), 1, "nothing is left");
    bytes
}

/// Follows a descriptor and checks what it says of the blob.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("SHA-256");
    let bytes = &files[&format!("blobs/sha256/{digest}")];
    assert_eq!(Blob::new(bytes.clone()).digest, digest);
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

#[test]
fn both_layouts_lead_to_the_program() {
    let program = program(62, 1);
    let files = unpacked(&written(&program));
    assert_eq!(parsed(&files["oci-layout"]), json!({"imageLayoutVersion": "1.0.0"}));
    let name = "localhost/leno:0.1.0";

    // As containerd reads it.
    let index = parsed(&files["index.json"]);
    let described = &index["manifests"][0];
    assert_eq!(described["annotations"]["io.containerd.image.name"], name);
    assert_eq!(described["platform"], json!({"architecture": "amd64", "os": "linux"}));
    let manifest = parsed(blob(&files, described));
    let config = parsed(blob(&files, &manifest["config"]));
    let layer = blob(&files, &manifest["layers"][0]);
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    assert_eq!(config["config"]["Entrypoint"], json!(["/leno"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Labels"]["org.opencontainers.image.title"], "leno");
    assert_eq!(unpacked(layer), BTreeMap::from([("leno".to_owned(), program)]));
    let mode = tar::Archive::new(layer).entries().unwrap().next().unwrap().unwrap().header().mode().unwrap();
    assert_eq!(mode, 0o755);

    // As docker always has.
    let docker = &parsed(&files["manifest.json"])[0];
    assert_eq!(docker["RepoTags"], json!([name]));
    assert_eq!(parsed(&files[docker["Config"].as_str().unwrap()]), config);
    assert_eq!(files[docker["Layers"][0].as_str().unwrap()], layer);
    assert_eq!(files.len(), 6, "and nothing else is in it: {:?}", files.keys());
}

#[test]
fn equal_programs_give_equal_archives_and_others_do_not() {
    let one = written(&program(62, 1));
    assert!(one == written(&program(62, 1)));
    assert!(one != written(&program(183, 1)));
}

#[test]
fn a_program_that_needs_a_loader_is_refused() {
    let refusal = image(&program(62, 3)).err().expect("a refusal").to_string();
    assert!(refusal.contains("linked dynamically"), "{refusal}");
}
