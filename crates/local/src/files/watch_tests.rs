use std::fs;
use std::time::Duration;

use super::*;

async fn sees(watcher: &Watcher, change: impl FnOnce()) {
    change();
    tokio::time::timeout(Duration::from_secs(5), watcher.changed()).await.expect("a change was missed").unwrap();
}

#[tokio::test]
async fn notices_every_way_files_change() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    fs::write(root.join("a.yaml"), "1").unwrap();
    let watcher = Watcher::new().unwrap();
    let paths = [root.clone()];
    watcher.cover(&paths).unwrap();

    sees(&watcher, || fs::write(root.join("a.yaml"), "2").unwrap()).await;
    sees(&watcher, || fs::write(root.join("b.yaml"), "1").unwrap()).await;
    sees(&watcher, || {
        fs::write(root.join(".a.yaml.swp"), "3").unwrap();
        fs::rename(root.join(".a.yaml.swp"), root.join("a.yaml")).unwrap();
    })
    .await;
    sees(&watcher, || fs::create_dir(root.join("sub")).unwrap()).await;
    watcher.cover(&paths).unwrap();
    sees(&watcher, || fs::write(root.join("sub/c.yaml"), "1").unwrap()).await;
    sees(&watcher, || fs::remove_file(root.join("b.yaml")).unwrap()).await;
    sees(&watcher, || fs::remove_dir_all(root.join("sub")).unwrap()).await;
}

#[tokio::test]
async fn notices_a_swapped_symlink() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    for version in ["v1", "v2"] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("a.yaml"), version).unwrap();
    }
    std::os::unix::fs::symlink("v1", root.join("data")).unwrap();
    let file = root.join("data/a.yaml");
    let watcher = Watcher::new().unwrap();
    watcher.cover(&[root.clone(), file]).unwrap();
    sees(&watcher, || {
        std::os::unix::fs::symlink("v2", root.join("tmp")).unwrap();
        fs::rename(root.join("tmp"), root.join("data")).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_single_file_is_watched_through_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("only.yaml");
    fs::write(&file, "1").unwrap();
    let watcher = Watcher::new().unwrap();
    watcher.cover(std::slice::from_ref(&file)).unwrap();
    sees(&watcher, || {
        let next = dir.path().join("next");
        fs::write(&next, "2").unwrap();
        fs::rename(&next, &file).unwrap();
    })
    .await;
}
