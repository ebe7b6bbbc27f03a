//! Manifests from files: everything is read before anything takes effect, so that one mistake
//! refuses the whole edit and names its place.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_objects::{Kind, Mode, Object, ObjectKey, decode};
use serde::Deserialize;

use crate::Error;

/// Most problems listed at once; more would scroll the first one away.
const MAX_PROBLEMS: usize = 20;

/// Where an object was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// File, as the user named it or found below what the user named.
    pub file: PathBuf,
    /// Line on which its document starts, from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// An object and where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced {
    /// The object.
    pub object: Arc<Object>,
    /// Where; `None` for those made by the program itself.
    pub origin: Option<Origin>,
}

/// Objects by key, with what their authors should know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The objects.
    pub objects: BTreeMap<ObjectKey, Sourced>,
    /// Sentences that start with a place.
    pub warnings: Vec<String>,
}

/// Reads files and directories; `-` is standard input.
///
/// # Errors
/// [`Error::Manifest`] with every mistake on its own line, as `file:line:column: reason`.
pub fn read(paths: &[PathBuf]) -> Result<Manifests, Error> {
    let mut files = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            files.push(path.clone());
        } else if path.is_dir() {
            let before = files.len();
            find(path, &mut files, 0);
            if files.len() == before {
                return Err(Error::Manifest(format!(
                    "{}: the directory holds no .yaml, .yml or .json file",
                    path.display()
                )));
            }
        } else {
            files.push(path.clone());
        }
    }
    let mut reading = Reading::default();
    for file in &files {
        match text_of(file) {
            Ok(text) => reading.file(file, &text),
            Err(error) => reading.problem(format!("{}: {}", file.display(), unreadable(&error))),
        }
    }
    reading.finish()
}

/// Reads files and directories again whenever one of them changes, and hands over what they hold
/// or what is wrong with them. Goes on until watching fails.
///
/// # Errors
/// If the kernel can't watch (more).
pub async fn follow(paths: &[PathBuf], mut load: impl FnMut(Result<Manifests, Error>)) -> Result<(), Error> {
    let watcher = crate::files::watch::Watcher::new()?;
    watcher.cover(paths)?;
    loop {
        watcher.changed().await?;
        watcher.cover(paths)?;
        load(read(paths));
    }
}

/// Reads one text as if it were a file called `name`.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, text: &str) -> Result<Manifests, Error> {
    let mut reading = Reading::default();
    reading.file(Path::new(name), text);
    reading.finish()
}

fn text_of(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}

/// Why a file can't be read, and what to do about it.
fn unreadable(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "there is no such file or directory: name files of Kubernetes manifests, or a directory that holds some"
                .to_owned()
        }
        ErrorKind::PermissionDenied => {
            "it may not be read by this user: change its mode, or use another user".to_owned()
        }
        ErrorKind::InvalidData => "it is not text in UTF-8, as manifests in YAML or JSON are".to_owned(),
        _ => error.to_string(),
    }
}

/// Manifest files below a directory in a stable order. Hidden ones are editors' and ConfigMaps'
/// own business.
fn find(directory: &Path, into: &mut Vec<PathBuf>, depth: usize) {
    if depth > 32 {
        return;
    }
    let mut entries: Vec<_> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let manifest = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if hidden {
            continue;
        }
        if path.is_dir() {
            find(&path, into, depth + 1);
        } else if manifest {
            into.push(path);
        }
    }
}

#[derive(Default)]
struct Reading {
    found: Manifests,
    problems: Vec<String>,
}

/// What must be known before the rest can be read.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<serde_json::Value>>,
}

impl Reading {
    fn file(&mut self, file: &Path, text: &str) {
        let seen = |all: &Self| (all.found.objects.len(), all.found.warnings.len(), all.problems.len());
        let before = seen(self);
        for (line, document) in documents(text) {
            let origin = Origin { file: file.to_owned(), line };
            self.document(origin, &document);
        }
        if seen(self) == before {
            self.found.warnings.push(format!("{}: the file holds no object", file.display()));
        }
    }

    fn document(&mut self, origin: Origin, text: &str) {
        let file = origin.file.display().to_string();
        let header = match serde_saphyr::from_str::<Option<Header>>(text) {
            Ok(Some(header)) => header,
            // Nothing but comments.
            Ok(None) => return,
            Err(error) => return self.problem(place(&file, origin.line, &error)),
        };
        let (Some(version), Some(kind)) = (header.api_version, header.kind) else {
            return self.problem(format!("{origin}: an object needs apiVersion and kind"));
        };
        if kind == "List" {
            for (index, item) in header.items.unwrap_or_default().into_iter().enumerate() {
                self.item(&origin, index, &item);
            }
            return;
        }
        let Some(kind) = self.known(&origin, &version, &kind) else { return };
        match serde_saphyr::with_deserializer_from_str(text, |from| decode(kind, Mode::Strict, from)) {
            Ok(decoded) => {
                self.warn(&origin, &decoded.object.key(), decoded.warnings);
                self.add(origin, decoded.object);
            }
            Err(error) => self.problem(place(&file, origin.line, &error)),
        }
    }

    fn item(&mut self, origin: &Origin, index: usize, item: &serde_json::Value) {
        let text = |field: &str| item.get(field).and_then(serde_json::Value::as_str).unwrap_or_default();
        let Some(kind) = self.known(origin, text("apiVersion"), text("kind")) else { return };
        match decode(kind, Mode::Strict, item) {
            Ok(decoded) => {
                self.warn(origin, &decoded.object.key(), decoded.warnings);
                self.add(origin.clone(), decoded.object);
            }
            Err(error) => self.problem(format!("{origin}: items[{index}]: {error}")),
        }
    }

    fn known(&mut self, origin: &Origin, version: &str, kind: &str) -> Option<Kind> {
        let known = Kind::from_api(version, kind);
        if known.is_none() {
            let near = Kind::ALL.iter().find(|known| known.as_str() == kind);
            let hint =
                near.map_or_else(String::new, |near| format!("; did you mean apiVersion {}?", near.api_version()));
            self.found.warnings.push(format!("{origin}: {kind} ({version}) is not understood and ignored{hint}"));
        }
        known
    }

    fn warn(&mut self, origin: &Origin, key: &ObjectKey, warnings: Vec<String>) {
        self.found.warnings.extend(warnings.into_iter().map(|warning| format!("{origin}: {key}: {warning}")));
    }

    fn add(&mut self, origin: Origin, object: Object) {
        let key = object.key();
        if let Some(Sourced { origin: Some(first), .. }) = self.found.objects.get(&key) {
            let text = format!("{origin}: {key} is defined twice; the first one is at {first}");
            return self.problem(text);
        }
        self.found.objects.insert(key, Sourced { object: Arc::new(object), origin: Some(origin) });
    }

    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    fn finish(mut self) -> Result<Manifests, Error> {
        if self.problems.is_empty() {
            return Ok(self.found);
        }
        let more = self.problems.len().saturating_sub(MAX_PROBLEMS);
        self.problems.truncate(MAX_PROBLEMS);
        if more > 0 {
            self.problems.push(format!("and {more} more"));
        }
        Err(Error::Manifest(self.problems.join("\n")))
    }
}

/// `file:line:column: reason`, the form editors and terminals make clickable. Without a position
/// it is the document's first line.
fn place(file: &str, line: usize, error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    match error.location() {
        Some(at) if at.line() > 0 => {
            let (line, column) = (at.line(), at.column());
            let mut reason = text.as_str();
            // The library says the position in words as well.
            for said in [format!("line {line} column {column}: "), format!("error: line {line} column {column}: ")] {
                reason = reason.strip_prefix(&said).unwrap_or(reason);
            }
            let said = format!(" at line {line}, column {column}");
            format!("{file}:{line}:{column}: {}", reason.replace(&said, ""))
        }
        _ => format!("{file}:{line}: {text}"),
    }
}

/// The documents of a YAML stream, each with the line it starts on. The lines before it are kept
/// as empty ones, so that a parser's line numbers are the file's. A `---` at the start of a line
/// ends a document even inside a block of text (YAML 1.2 §9.1.2).
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut current = String::new();
    let mut start = 1;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let separator =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if let Some(rest) = separator {
            found.push((start, std::mem::replace(&mut current, "\n".repeat(index))));
            // Three columns, so that what follows on the line keeps its own.
            current.push_str("   ");
            current.push_str(rest);
            start = index + 1;
        } else {
            current.push_str(line);
        }
    }
    found.push((start, current));
    found.retain(|(_, text)| !text.trim().is_empty());
    for (start, text) in &mut found {
        *start += text.lines().skip(*start - 1).take_while(|line| line.trim().is_empty()).count();
    }
    found
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
