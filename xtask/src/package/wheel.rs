//! A Python wheel (packaging.python.org, "Binary distribution format") that holds a program and no Python, as those of other
//! static programs do: `pip install` puts it beside the interpreter's own programs.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::{CompressionMethod, ZipArchiveWriter};
use sha2::{Digest as _, Sha256};

use super::{Content, DESCRIPTION, LICENSE, SUMMARY, VERSION, called};

/// A static program runs on any Linux, with either C library; both tags say so to pip.
const PLATFORMS: [(&str, &str); 2] =
    [("amd64", "manylinux2014_x86_64.musllinux_1_1_x86_64"), ("arm64", "manylinux2014_aarch64.musllinux_1_1_aarch64")];

/// In a mode: a regular file (inode(7)).
const REGULAR_FILE: u32 = 0o100_000;

/// The file's name, and what is in it.
pub(super) fn pack(content: &Content<'_>) -> Result<(String, Vec<u8>)> {
    let platforms = called(content.architecture, &PLATFORMS)?;
    let mut wheel = Wheel { archive: ZipArchiveWriter::new(Vec::new()), record: String::new() };
    let about = |name: &str| format!("leno-{VERSION}.dist-info/{name}");

    wheel.add(&format!("leno-{VERSION}.data/scripts/leno"), 0o755, content.program)?;
    let metadata = format!(
        "Metadata-Version: 2.4\nName: leno\nVersion: {VERSION}\nSummary: {SUMMARY}\nLicense-Expression: {LICENSE}\n\
         License-File: LICENSE\nDescription-Content-Type: text/markdown\n\n{DESCRIPTION}\n"
    );
    wheel.add(&about("METADATA"), 0o644, metadata.as_bytes())?;
    let mut form = "Wheel-Version: 1.0\nGenerator: cargo xtask package\nRoot-Is-Purelib: false\n".to_owned();
    for platform in platforms.split('.') {
        let _ = writeln!(form, "Tag: py3-none-{platform}");
    }
    wheel.add(&about("WHEEL"), 0o644, form.as_bytes())?;
    wheel.add(&about("licenses/LICENSE"), 0o644, content.license)?;
    let bytes = wheel.finish(&about("RECORD"))?;
    Ok((format!("leno-{VERSION}-py3-none-{platforms}.whl"), bytes))
}

struct Wheel {
    archive: ZipArchiveWriter<Vec<u8>>,
    /// A line for each file: its path, digest and size.
    record: String,
}

impl Wheel {
    fn add(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        let _ = writeln!(self.record, "{path},sha256={digest},{}", bytes.len());
        self.put(path, mode, bytes)
    }

    fn put(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        // pip makes a program executable only if the mode says that it is a regular file.
        let mode = REGULAR_FILE | mode;
        let file = self.archive.new_file(path).compression_method(CompressionMethod::DEFLATE).unix_permissions(mode);
        let (mut entry, form) = file.start().with_context(|| path.to_owned())?;
        let mut content = form.wrap(DeflateEncoder::new(&mut entry, Compression::default()));
        content.write_all(bytes).with_context(|| path.to_owned())?;
        let (encoder, sizes) = content.finish().with_context(|| path.to_owned())?;
        encoder.finish().with_context(|| path.to_owned())?;
        entry.finish(sizes).with_context(|| path.to_owned())?;
        Ok(())
    }

    /// The list of files does not tell its own digest.
    fn finish(mut self, record: &str) -> Result<Vec<u8>> {
        let list = format!("{}{record},,\n", self.record);
        self.put(record, 0o644, list.as_bytes())?;
        self.archive.finish().context("packing the wheel")
    }
}
