//! The values of the chart: its own, those of a profile, and what an operator changes.

use serde_json::{Map, Value};

use crate::chart;
use crate::schema::Schema;
use crate::{Error, Profile, yaml};

/// A full set of values. Later ones win, as with Helm: mappings are merged, everything else is replaced.
#[derive(Debug, Clone)]
pub struct Values {
    all: Value,
    /// What an operator changed in this profile.
    given: Value,
    /// The files that were added, with their names.
    files: Vec<(String, Value)>,
}

impl Values {
    /// Those of a profile.
    ///
    /// # Errors
    ///
    /// If the chart is broken.
    pub fn of(profile: Profile) -> Result<Self, Error> {
        let parse = |file, text| yaml::object(text).map_err(|reason| Error::Chart { file, reason });
        let mut all = parse("values.yaml", chart::LENO.values)?;
        merge(&mut all, parse("a profile", profile.values())?);
        Ok(Self { all, given: Value::Object(Map::new()), files: Vec::new() })
    }

    /// Adds a file of values; `origin` is its name, for errors.
    ///
    /// # Errors
    ///
    /// If the text is not YAML, or no mapping.
    pub fn file(&mut self, text: &str, origin: &str) -> Result<(), Error> {
        let wrong = |reason: String| Error::NotValues { origin: origin.to_owned(), reason };
        let values = yaml::object(text).map_err(wrong)?;
        if !values.is_object() {
            return Err(wrong("it is no mapping; write for example `control: {replicas: 2}`".to_owned()));
        }
        self.files.push((origin.to_owned(), values.clone()));
        self.add(values);
        Ok(())
    }

    /// Adds `name=value`, with dots between the parts of the name; a dot in a name is written `\.`.
    ///
    /// The value is read as what the chart wants there. A list of texts is written `{a,b}`.
    ///
    /// # Errors
    ///
    /// If there is no such value, or this can't be one.
    pub fn set(&mut self, assignment: &str) -> Result<(), Error> {
        let wrong = || Error::Assignment { text: assignment.to_owned() };
        let (path, text) = assignment.split_once('=').ok_or_else(wrong)?;
        let parts = parts(path);
        if parts.iter().any(String::is_empty) {
            return Err(wrong());
        }
        let value = Schema::of_chart()?.at(&parts)?.read(path, text)?;
        let nested = parts.into_iter().rev().fold(value, |inner, part| Value::Object(Map::from_iter([(part, inner)])));
        self.add(nested);
        Ok(())
    }

    fn add(&mut self, values: Value) {
        merge(&mut self.all, values.clone());
        merge(&mut self.given, values);
    }

    /// All of them, after a check against the chart's schema.
    ///
    /// # Errors
    ///
    /// The first value that is wrong.
    pub fn checked(&self) -> Result<&Value, Error> {
        Schema::of_chart()?.check(&self.all).map_err(|error| self.located(error))?;
        Ok(&self.all)
    }

    /// A wrong value with the name of the file that it is from.
    fn located(&self, error: Error) -> Error {
        let Error::Value { path, reason } = error else { return error };
        let has = |values: &Value| path.split('.').try_fold(values, |here, part| here.get(part)).is_some();
        match self.files.iter().rev().find(|(_, values)| has(values)) {
            Some((origin, _)) => Error::Value { path: format!("{origin}: {path}"), reason },
            None => Error::Value { path, reason },
        }
    }

    /// What an operator changed in the profile, as YAML, for a later [`Values::file`].
    ///
    /// # Errors
    ///
    /// If it can't be written.
    pub fn given(&self) -> Result<String, Error> {
        yaml::text(&self.given).map_err(|reason| Error::NotValues { origin: "the values".to_owned(), reason })
    }
}

/// Helm's rule: mappings are merged, `null` removes, everything else is replaced.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// `a.b\.c` has two parts, `a` and `b.c`.
fn parts(path: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = path.chars();
    while let Some(character) = characters.next() {
        match character {
            '.' => parts.push(String::new()),
            _ => {
                let character = if character == '\\' { characters.next().unwrap_or('\\') } else { character };
                if let Some(last) = parts.last_mut() {
                    last.push(character);
                }
            }
        }
    }
    parts
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
