//! A pod's volumes on the machine: a directory for each, below the stage's own, and where the pod mounts them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use leno_objects::Volume;

use crate::cluster::config::{Config, VolumeFile};
use crate::stage::pod::mounts::Mount;
use crate::stage::pod::plan::PodPlan;

/// Anybody may write, as into a container's empty volume: programs of a pod may change their user.
const OPEN: u32 = 0o777;
/// Anybody may read what a ConfigMap or a Secret brings, as Kubernetes has it where no mode is given.
const READABLE: u32 = 0o755;

/// Makes the volumes of a pod; where its containers mount them, those that hold others first.
///
/// # Errors
/// What is missing, or what the file system refuses.
pub(crate) fn prepare(plan: &PodPlan, run_dir: &Path, config: &Config) -> Result<Vec<Mount>, String> {
    let spec = &plan.pod.spec;
    let mut sources: BTreeMap<&str, (PathBuf, bool)> = BTreeMap::new();
    for volume in spec.volumes.iter() {
        let source = make(plan, run_dir, config, volume).map_err(|why| format!("volume {}: {why}", volume.name))?;
        sources.insert(&volume.name, source);
    }
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in spec.all_containers().flat_map(|container| &container.volume_mounts) {
        let Some((source, fixed)) = sources.get(mount.name.as_str()) else {
            return Err(format!("there is no volume {}", mount.name));
        };
        let source = source.join(&mount.sub_path);
        if !*fixed && !mount.sub_path.is_empty() && !source.exists() {
            directory(&source, OPEN).map_err(|reason| format!("volume {}: {reason}", mount.name))?;
        }
        if !source.exists() {
            return Err(format!("volume {} has no {:?}, which subPath asks for", mount.name, mount.sub_path));
        }
        let target = format!("/{}", mount.mount_path.trim_matches('/'));
        let read_only = mount.read_only || *fixed;
        let made = Mount { source: source.display().to_string(), target, read_only };
        if !mounts.contains(&made) {
            mounts.push(made);
        }
    }
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(mounts)
}

/// Where a volume is, and whether its content is not the pod's to change.
fn make(plan: &PodPlan, run_dir: &Path, config: &Config, volume: &Volume) -> Result<(PathBuf, bool), String> {
    let what = |reason: io::Error| reason.to_string();
    let namespace = &plan.pod.metadata.namespace;
    if let Some(files) = config.files(namespace, volume)? {
        let dir = directory_of(plan, volume);
        write(&dir, &files).map_err(what)?;
        return Ok((dir, true));
    }
    if let Some(host) = &volume.host_path {
        let path = PathBuf::from(&host.path);
        return if path.exists() { Ok((path, false)) } else { Err(format!("this machine has no {}", host.path)) };
    }
    let dir = match &volume.persistent_volume_claim {
        // It outlives the pod, and goes with the stage.
        Some(claim) => run_dir.join("claims").join(format!("{namespace}_{}", claim.claim_name)),
        None => directory_of(plan, volume),
    };
    directory(&dir, OPEN).map_err(what)?;
    Ok((dir, false))
}

/// Brings the files of a running pod up to date after a ConfigMap or a Secret has changed.
///
/// # Errors
/// What the file system refuses.
pub(crate) fn refresh(plan: &PodPlan, config: &Config) -> Result<(), String> {
    for volume in plan.pod.spec.volumes.iter() {
        // What is missing now stays as it was: an edit that takes it away is refused as long as it is referred to.
        let Ok(Some(files)) = config.files(&plan.pod.metadata.namespace, volume) else { continue };
        let dir = directory_of(plan, volume);
        if dir.exists() {
            write(&dir, &files).map_err(|reason| format!("volume {}: {reason}", volume.name))?;
        }
    }
    Ok(())
}

fn directory_of(plan: &PodPlan, volume: &Volume) -> PathBuf {
    plan.dir.join("volumes").join(&volume.name)
}

fn directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Makes these files all that there are in a directory. Who reads one meanwhile sees it whole, old or new.
fn write(dir: &Path, files: &[VolumeFile]) -> io::Result<()> {
    directory(dir, READABLE)?;
    let mut wanted: BTreeSet<PathBuf> = BTreeSet::new();
    for (path, content) in files {
        let file = dir.join(path);
        wanted.extend(file.ancestors().map(Path::to_owned));
        if fs::read(&file).is_ok_and(|now| now == *content) {
            continue;
        }
        let parent = file.parent().unwrap_or(dir);
        for missing in parent
            .ancestors()
            .take_while(|path| path.starts_with(dir) && !path.exists())
            .collect::<Vec<_>>()
            .iter()
            .rev()
        {
            directory(missing, READABLE)?;
        }
        let mut draft = file.clone().into_os_string();
        draft.push(".leno-draft");
        fs::write(&draft, content)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
        fs::rename(&draft, &file)?;
    }
    remove_others(dir, &wanted)
}

fn remove_others(dir: &Path, wanted: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match (wanted.contains(&path), path.is_dir()) {
            (true, true) => remove_others(&path, wanted)?,
            (true, false) => {}
            (false, true) => fs::remove_dir_all(&path)?,
            (false, false) => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_changed_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("v");
        let files = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(p, c)| ((*p).to_owned(), c.as_bytes().to_vec())).collect::<Vec<_>>()
        };
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        write(&dir, &files(&[("a", "1"), ("deep/er/b", "2"), ("c", "3")])).unwrap();
        assert_eq!((read("a"), read("deep/er/b")), (Some("1".to_owned()), Some("2".to_owned())));
        assert_eq!(fs::metadata(dir.join("deep")).unwrap().permissions().mode() & 0o777, READABLE);
        write(&dir, &files(&[("a", "4"), ("c", "3")])).unwrap();
        assert_eq!(
            (read("a"), read("c"), dir.join("deep").exists()),
            (Some("4".to_owned()), Some("3".to_owned()), false)
        );
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "no draft is left");
    }
}
