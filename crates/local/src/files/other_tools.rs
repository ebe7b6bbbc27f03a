//! Files in a directory of manifests that another tool has to read first.

use std::path::Path;

/// Why a directory can't be read that holds a Helm chart: what is in it are templates. `None` if it holds none.
pub(super) fn chart(directory: &Path) -> Option<String> {
    let file = directory.join("Chart.yaml");
    file.is_file().then(|| {
        let directory = directory.display();
        format!(
            "{}: this is a Helm chart, and its files are templates: Leno reads finished manifests; write them with \
             `helm template {directory} > manifests.yaml` and give Leno that file",
            file.display()
        )
    })
}

/// The remark on a file that tells kustomize how to put manifests together. `None` if it is another file.
pub(super) fn kustomization(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    ["kustomization.yaml", "kustomization.yml"].contains(&name).then(|| {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        format!(
            "{}: tells kustomize how to put these manifests together, and is passed over: the files are read as they are, \
             without its patches, names and generators; for those write `kustomize build {} > manifests.yaml` and give \
             Leno that file",
            file.display(),
            directory.display()
        )
    })
}
