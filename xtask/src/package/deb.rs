//! A Debian package (deb(5)): an archive of three members, which name its form, say what it is, and hold its files.

use std::io::Write;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Content, DESCRIPTION, SUMMARY, VERSION, called};

const ARCHITECTURES: [(&str, &str); 2] = [("amd64", "amd64"), ("arm64", "arm64")];

/// The file's name, and what is in it.
pub(super) fn pack(content: &Content<'_>) -> Result<(String, Vec<u8>)> {
    let architecture = called(content.architecture, &ARCHITECTURES)?;
    // No `Depends`: the program is static.
    let control = format!(
        "Package: leno\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: Leno's maintainers\n\
         Installed-Size: {}\nSection: net\nPriority: optional\nDescription: {SUMMARY}\n {DESCRIPTION}\n",
        content.program.len().div_ceil(1024)
    );
    let control = tarball(&[File { path: "./control", mode: 0o644, bytes: control.as_bytes() }])?;
    let data = tarball(&[
        File { path: "./usr/", mode: 0o755, bytes: &[] },
        File { path: "./usr/bin/", mode: 0o755, bytes: &[] },
        File { path: "./usr/bin/leno", mode: 0o755, bytes: content.program },
        File { path: "./usr/share/", mode: 0o755, bytes: &[] },
        File { path: "./usr/share/doc/", mode: 0o755, bytes: &[] },
        File { path: "./usr/share/doc/leno/", mode: 0o755, bytes: &[] },
        File { path: "./usr/share/doc/leno/copyright", mode: 0o644, bytes: content.license },
    ])?;

    let mut package = b"!<arch>\n".to_vec();
    for (name, bytes) in [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control), ("data.tar.gz", &data)] {
        member(&mut package, name, bytes)?;
    }
    Ok((format!("leno_{VERSION}_{architecture}.deb"), package))
}

struct File<'a> {
    /// A directory ends with `/`.
    path: &'a str,
    mode: u32,
    bytes: &'a [u8],
}

fn tarball(files: &[File<'_>]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        let kind = if file.path.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular };
        header.set_entry_type(kind);
        header.set_mode(file.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(file.bytes.len() as u64);
        // Not by the archive's own way to set a path, which leaves out the `./` by which dpkg knows a file.
        let name = &mut header.as_old_mut().name;
        name.get_mut(..file.path.len()).context("a short path")?.copy_from_slice(file.path.as_bytes());
        header.set_cksum();
        archive.append(&header, file.bytes).with_context(|| format!("packing {}", file.path))?;
    }
    let compressed = archive.into_inner().context("packing")?;
    compressed.finish().context("compressing")
}

/// A member of the archive (ar(5)): its name, time, owner, group, mode and size in fixed columns, then its bytes, padded to
/// an even number.
fn member(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Result<()> {
    writeln!(archive, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, "100644", bytes.len()).context("packing")?;
    archive.extend_from_slice(bytes);
    if bytes.len() % 2 == 1 {
        archive.push(b'\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_stand_in_columns_of_sixty_bytes_and_begin_at_even_places() {
        let mut archive = Vec::new();
        member(&mut archive, "one", b"odd").expect("it is packed");
        assert_eq!(archive.len(), 60 + 4);
        assert_eq!(&archive[..16], b"one             ");
        assert_eq!(&archive[48..60], b"3         `\n");
        member(&mut archive, "two", b"even").expect("it is packed");
        assert_eq!(archive.len(), 64 + 60 + 4);
    }
}
