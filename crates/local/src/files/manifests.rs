//! Manifests from files: everything is read before anything takes effect, so that one mistake
//! refuses the whole edit and names its place.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_objects::{Decoded, Kind, Mode, Object, ObjectKey, decode_telling_where};
use serde::Deserialize;

use crate::Error;
use crate::files::mistakes::{Document, NO_OBJECT, told_of_item};
use crate::files::origin::Origin;
use crate::files::other_tools;
use crate::files::passed_over::{self, PassedOver, hint, object_name};

/// Most problems listed at once; more would scroll the first one away.
const MAX_PROBLEMS: usize = 20;

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
    /// What is written and not in force, although one would believe so.
    pub passed_over: Vec<PassedOver>,
}

impl Manifests {
    /// What a sentence about an object begins with: where it was written, if that is known.
    pub fn place(&self, key: &ObjectKey) -> String {
        let origin = self.objects.get(key).and_then(|sourced| sourced.origin.as_ref());
        origin.map(|origin| format!("{origin}: ")).unwrap_or_default()
    }
}

/// Reads files and directories; `-` is standard input.
///
/// # Errors
/// [`Error::Manifest`] with every mistake on its own line, as `file:line:column: reason`.
pub fn read(paths: &[PathBuf]) -> Result<Manifests, Error> {
    let mut files = Vec::new();
    let mut reading = Reading::default();
    for path in paths {
        if path == Path::new("-") {
            files.push(path.clone());
        } else if path.is_dir() {
            let before = files.len();
            find(path, &mut files, &mut reading, 0);
            if files.len() == before && reading.problems.is_empty() {
                return Err(Error::Manifest(format!(
                    "{}: the directory holds no .yaml, .yml or .json file",
                    path.display()
                )));
            }
        } else if let Some(word) = other_tools::kustomization(path) {
            reading.problem(word);
        } else {
            files.push(path.clone());
        }
    }
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
fn find(directory: &Path, into: &mut Vec<PathBuf>, reading: &mut Reading, depth: usize) {
    if depth > 32 {
        return;
    }
    if let Some(chart) = other_tools::chart(directory) {
        return reading.problem(chart);
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
            find(&path, into, reading, depth + 1);
        } else if let Some(word) = other_tools::kustomization(&path) {
            reading.found.warnings.push(word);
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

/// The fields that must be known before the rest can be read.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<serde_json::Value>>,
}

impl Reading {
    fn file(&mut self, file: &Path, text: &str) {
        let seen = |all: &Self| {
            let Manifests { objects, warnings, passed_over } = &all.found;
            (objects.len(), warnings.len(), passed_over.len(), all.problems.len())
        };
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
        let wrong = |error: &serde_saphyr::Error, field: &str| {
            Document { file: &file, start: origin.line, text, field }.told(error)
        };
        let header = match serde_saphyr::from_str::<Option<Header>>(text) {
            Ok(Some(header)) => header,
            // Nothing but comments.
            Ok(None) => return,
            Err(error) => return self.problem(wrong(&error, "")),
        };
        let (version, kind) = match (header.api_version, header.kind) {
            (Some(version), Some(kind)) => (version, kind),
            (version, kind) => {
                return self.problem(format!("{origin}: {}", headless(version.as_deref(), kind.as_deref())));
            }
        };
        if kind == "List" {
            for (index, item) in header.items.unwrap_or_default().into_iter().enumerate() {
                self.item(&origin, index, &item);
            }
            return;
        }
        let Some(kind) = Kind::from_api(&version, &kind) else {
            // Its fields are anybody's, and may be of a form that is understood even less.
            let body = serde_saphyr::from_str(text).unwrap_or_default();
            return self.unknown(&origin, &version, &kind, &body);
        };
        let mut field = String::new();
        let read = serde_saphyr::with_deserializer_from_str(text, |from| {
            decode_telling_where(kind, Mode::Strict, from, &mut field)
        });
        match read {
            Ok(decoded) => {
                self.add(origin, decoded);
            }
            Err(error) => self.problem(wrong(&error, &field)),
        }
    }

    fn item(&mut self, origin: &Origin, index: usize, item: &serde_json::Value) {
        let text = |field: &str| item.get(field).and_then(serde_json::Value::as_str);
        let (Some(version), Some(kind)) = (text("apiVersion"), text("kind")) else {
            let why = headless(text("apiVersion"), text("kind"));
            return self.problem(format!("{origin}: items[{index}]: {why}"));
        };
        let Some(kind) = Kind::from_api(version, kind) else { return self.unknown(origin, version, kind, item) };
        let mut field = String::new();
        match decode_telling_where(kind, Mode::Strict, item, &mut field) {
            Ok(decoded) => {
                self.add(origin.clone(), decoded);
            }
            Err(error) => {
                let told = told_of_item(&field, &error.to_string());
                self.problem(format!("{origin}: items[{index}]: {told}"));
            }
        }
    }

    /// An object of a kind that is not understood.
    fn unknown(&mut self, origin: &Origin, version: &str, kind: &str, body: &serde_json::Value) {
        match PassedOver::object(origin, version, kind, body) {
            Some(passed_over) => self.found.passed_over.push(passed_over),
            None => {
                let (object, hint) = (object_name(kind, body), hint(version, kind));
                self.found.warnings.push(format!("{origin}: {object} ({version}) is not understood and ignored{hint}"));
            }
        }
    }

    fn add(&mut self, origin: Origin, decoded: Decoded) {
        let Decoded { object, warnings, not_in_force } = decoded;
        let key = object.key();
        self.found.warnings.extend(warnings.into_iter().map(|warning| format!("{origin}: {key}: {warning}")));
        self.found.passed_over.extend(not_in_force.into_iter().map(|field| PassedOver::field(&origin, &key, field)));
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
            let all = self.found.objects.values().filter_map(|it| Some((&*it.object, it.origin.as_ref()?)));
            let passed_over = [passed_over::gateways(all.clone()), passed_over::routes(all)];
            self.found.passed_over.extend(passed_over.into_iter().flatten());
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

/// What an object lacks that does not say what it is.
fn headless(version: Option<&str>, kind: Option<&str>) -> String {
    let known = kind.and_then(|kind| Kind::ALL.iter().find(|known| known.as_str() == kind));
    match (version, kind, known) {
        (None, Some(_), Some(known)) => {
            format!("apiVersion is missing: a {known} begins with `apiVersion: {}`", known.api_version())
        }
        (None, Some(kind), None) => format!("apiVersion is missing beside kind {kind}: every object begins with both"),
        (Some(version), None, _) => {
            format!("kind is missing beside apiVersion {version}: every object begins with both")
        }
        _ => NO_OBJECT.to_owned(),
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
