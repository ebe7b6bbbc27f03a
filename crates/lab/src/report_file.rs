//! A report's file. It is written atomically, and can be read again.

use std::io::Write as _;
use std::path::Path;

use crate::Error;
use crate::report::{Report, VERSION, html, raw_json};

/// Reads a report: the JSON that `leno lab run -o json` printed, or a page that [`write`] wrote.
///
/// # Errors
/// When the file can't be read, or contains no report of this version.
pub(crate) fn read(path: &Path) -> Result<Report, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(format!("cannot read {}", path.display())))?;
    let json = raw_json(&text).unwrap_or(&text);
    let report: Report =
        serde_json::from_str(json).map_err(|source| Error::NoReport { path: path.to_owned(), source })?;
    if report.version > VERSION {
        return Err(Error::Usage(format!(
            "{} is a report of version {}, and this Leno knows versions up to {VERSION}: show it with the Leno that wrote it, \
             or a newer one",
            path.display(),
            report.version
        )));
    }
    Ok(report)
}

/// Writes a report as one HTML page.
///
/// # Errors
/// When the file can't be written. The previous file is then still there.
pub(crate) fn write(path: &Path, report: &Report) -> Result<(), Error> {
    let failed = |source| Error::Report { path: path.to_owned(), source };
    let page = html(report).map_err(|error| failed(error.into()))?;
    replace(path, page.as_bytes()).map_err(failed)
}

/// Checks that the report can be written, before minutes of measurement. A failed run leaves no empty file.
///
/// # Errors
/// When it can't be written.
pub(crate) fn check_writable(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Report { path: path.to_owned(), source };
    let existed = path.exists();
    std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    if existed { Ok(()) } else { std::fs::remove_file(path).map_err(failed) }
}

/// Writes a file atomically, so that a full disk does not cost the previous report. A pipe, a device, and a file in a
/// directory that accepts no new file are written directly.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let is_regular = path.metadata().map_or(true, |file| file.is_file());
    // A symbolic link is kept.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let beside = target.with_file_name(format!(".{name}.{}", std::process::id()));
    let created = if is_regular { std::fs::File::create_new(&beside).ok() } else { None };
    let Some(mut file) = created else { return std::fs::write(path, content) };
    let written = file.write_all(content).and_then(|()| std::fs::rename(&beside, &target));
    written.inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_previous_one_atomically() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, link) = (scratch.path().join("a.html"), scratch.path().join("link"));
        replace(&path, b"first").unwrap();
        std::os::unix::fs::symlink("a.html", &link).unwrap();
        replace(&link, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert!(link.is_symlink());
        assert!(replace(Path::new("/dev/full"), b"third").is_err());
        replace(Path::new("/dev/null"), b"third").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        assert!(replace(&scratch.path().join("no/such"), b"third").is_err());
        let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    /// Today's program can show the results behind the documentation, and read them back from the page.
    #[test]
    fn every_stored_result_is_shown() {
        let scratch = tempfile::tempdir().unwrap();
        let page = scratch.path().join("page.html");
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/results");
        let days = std::fs::read_dir(stored).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let files = days.flat_map(|day| std::fs::read_dir(day).unwrap()).map(|entry| entry.unwrap().path());
        let mut shown = 0;
        // `one-and-eight` is an array of reports.
        for file in files
            .filter(|file| file.extension().is_some_and(|end| end == "json") && !file.ends_with("one-and-eight.json"))
        {
            let report = read(&file).unwrap_or_else(|error| panic!("{error}"));
            write(&page, &report).unwrap();
            assert_eq!(read(&page).unwrap(), report, "{}", file.display());
            shown += 1;
        }
        assert!(shown > 50, "{shown}");
    }

    #[test]
    fn other_files_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("a.json is no report of `leno lab run`") && error.contains("-o json"), "{error}");
        let error = read(&scratch.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("none"), "{error}");
    }
}
