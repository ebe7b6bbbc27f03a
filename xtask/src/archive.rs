//! A container image of one static program, as one file in two layouts at once: an OCI image layout, which containerd, podman,
//! kind, k3s and a newer docker read, and the `manifest.json` that `docker load` has always read. Both name the same blobs.
//!
//! Equal programs give equal archives: no times, no owners, nothing of the machine.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{elf, whole_file};

/// What goes into an image.
pub(crate) struct Content<'a> {
    /// The image's name as manifests write it, with a tag: `localhost/leno:0.1.0`.
    pub(crate) image: &'a str,
    /// The program's file in the image's root; it is what a container starts.
    pub(crate) file: &'a str,
    /// The static program itself.
    pub(crate) program: &'a [u8],
    /// What else lies in the image's root.
    pub(crate) beside: &'a [Beside<'a>],
    /// Who runs it, by number; nobody given is root.
    pub(crate) user: Option<&'a str>,
    /// Labels of the image.
    pub(crate) labels: &'a [(&'a str, &'a str)],
}

/// A file beside the program.
pub(crate) struct Beside<'a> {
    pub(crate) file: &'a str,
    pub(crate) bytes: &'a [u8],
    pub(crate) mode: u32,
}

/// An image of one program, ready to be written.
pub(crate) struct Image {
    layer: Blob,
    config: Blob,
    manifest: Blob,
    index: Vec<u8>,
    docker: Vec<u8>,
}

struct Blob {
    bytes: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { bytes, digest }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.bytes.len()})
    }
}

impl Image {
    /// # Errors
    ///
    /// If the program would not run in an image that holds nothing else.
    pub(crate) fn new(content: &Content<'_>) -> Result<Self> {
        let (_, tag) = content.image.rsplit_once(':').with_context(|| format!("{} has no tag", content.image))?;
        let architecture = elf::architecture(content.program)?;
        let layer = Blob::new(layer(content)?);
        let mut config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [format!("/{}", content.file)], "Env": ["PATH=/"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
            "history": [{"created_by": "cargo xtask"}],
        });
        if let Some(user) = content.user {
            config["config"]["User"] = user.into();
        }
        for (label, value) in content.labels {
            config["config"]["Labels"][*label] = (*value).into();
        }
        let config = Blob::json(&config);
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
        }));
        let mut described = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
        described["platform"] = json!({"architecture": architecture, "os": "linux"});
        // The first is containerd's and the whole name; the second is everybody's and only the tag.
        described["annotations"] =
            json!({"io.containerd.image.name": content.image, "org.opencontainers.image.ref.name": tag});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [described],
        });
        let docker = json!([{"Config": config.path(), "RepoTags": [content.image], "Layers": [layer.path()]}]);
        let (index, docker) = (index.to_string().into_bytes(), docker.to_string().into_bytes());
        Ok(Self { layer, config, manifest, index, docker })
    }

    /// Of the image's manifest: what a registry would call it by.
    pub(crate) fn digest(&self) -> String {
        format!("sha256:{}", self.manifest.digest)
    }

    /// Writes the archive, all of it or nothing, and returns its size in bytes.
    pub(crate) fn write(&self, path: &Path) -> Result<u64> {
        whole_file::write_with(path, 0o644, |file| self.archive(file))?;
        Ok(fs::metadata(path).context("reading the size of the archive")?.len())
    }

    fn archive(&self, file: &File) -> io::Result<()> {
        let mut archive = tar::Builder::new(BufWriter::with_capacity(1 << 20, file));
        add(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add(&mut archive, "index.json", 0o644, &self.index)?;
        add(&mut archive, "manifest.json", 0o644, &self.docker)?;
        for blob in [&self.manifest, &self.config, &self.layer] {
            add(&mut archive, &blob.path(), 0o644, &blob.bytes)?;
        }
        archive.into_inner()?.flush()
    }
}

/// The image's only layer: the program, and what lies beside it.
fn layer(content: &Content<'_>) -> Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::with_capacity(content.program.len() + 4096));
    add(&mut layer, content.file, 0o755, content.program).context("packing the program")?;
    for beside in content.beside {
        add(&mut layer, beside.file, beside.mode, beside.bytes).with_context(|| format!("packing {}", beside.file))?;
    }
    layer.into_inner().context("packing the program")
}

fn add(archive: &mut tar::Builder<impl Write>, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes)
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
