//! `values.schema.json`, as far as the chart uses JSON Schema: Helm checks values against the same file.

use std::sync::LazyLock;

use serde_json::Value;

use crate::{Error, chart};

/// The chart's, or why it can't be read.
static CHARTS: LazyLock<Result<Value, String>> =
    LazyLock::new(|| serde_json::from_str(chart::SCHEMA).map_err(|error| error.to_string()));

/// Where anything may be.
static ANYTHING: Value = Value::Null;

/// A schema, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema {
    root: &'static Value,
    here: &'static Value,
}

impl Schema {
    /// That of all values.
    pub(crate) fn of_chart() -> Result<Self, Error> {
        let root = CHARTS.as_ref();
        let root = root.map_err(|reason| Error::Chart { file: "values.schema.json", reason: reason.clone() })?;
        Ok(Self { root, here: root })
    }

    fn part(self, here: &'static Value) -> Self {
        let definition = here["$ref"].as_str().and_then(|path| self.root.pointer(path.trim_start_matches('#')));
        Self { root: self.root, here: definition.unwrap_or(here) }
    }

    /// That of a value by its name's parts.
    pub(crate) fn at(&self, parts: &[String]) -> Result<Self, Error> {
        let mut schema = *self;
        for (index, part) in parts.iter().enumerate() {
            schema =
                schema.property(part).map_err(|reason| Error::Value { path: parts[..=index].join("."), reason })?;
        }
        Ok(schema)
    }

    fn property(&self, name: &str) -> Result<Self, String> {
        let known = &self.here["properties"];
        match (known.get(name), &self.here["additionalProperties"]) {
            (Some(property), _) => Ok(self.part(property)),
            (None, others @ Value::Object(_)) => Ok(self.part(others)),
            (None, Value::Bool(true)) => Ok(self.part(&ANYTHING)),
            (None, _) if self.here.is_null() => Ok(*self),
            (None, _) => {
                let names: Vec<_> = known.as_object().into_iter().flat_map(|known| known.keys()).cloned().collect();
                if names.is_empty() {
                    return Err("there is no such value: what it is in has no parts".to_owned());
                }
                Err(format!("there is no such value; there is {}", names.join(", ")))
            }
        }
    }

    fn types(&self) -> Vec<&str> {
        match &self.here["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Reads a text as what is wanted here.
    pub(crate) fn read(&self, path: &str, text: &str) -> Result<Value, Error> {
        let types = self.types();
        let may = |name: &str| types.is_empty() || types.contains(&name);
        let list = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let value = if let Some(items) = list.filter(|_| may("array")) {
            let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        } else if let Some(number) = text.parse::<i64>().ok().filter(|_| may("integer")) {
            number.into()
        } else if let Some(truth) = text.parse::<bool>().ok().filter(|_| may("boolean")) {
            truth.into()
        } else if may("string") {
            text.into()
        } else {
            let example = match types.first() {
                Some(&"integer") => "write a number, as in 2",
                Some(&"boolean") => "write true or false",
                Some(&"array") => "write a list of texts as in {a,b}, or use a file with -f",
                _ => "it has parts; set those, or use a file with -f",
            };
            return Err(Error::Value {
                path: path.to_owned(),
                reason: format!("{text:?} can't be its value: {example}"),
            });
        };
        self.check_at(path, &value)?;
        Ok(value)
    }

    /// Checks a value and everything in it.
    pub(crate) fn check(&self, value: &Value) -> Result<(), Error> {
        self.check_at("", value)
    }

    fn check_at(&self, path: &str, value: &Value) -> Result<(), Error> {
        let wrong = |reason: String| Err(Error::Value { path: path.to_owned(), reason });
        let types = self.types();
        if !types.is_empty() && !types.iter().any(|name| is(value, name)) {
            return wrong(format!("is {value}, and must be of type {}", types.join(" or ")));
        }
        if let Some(choices) = self.here["enum"].as_array().filter(|choices| !choices.contains(value)) {
            let choices: Vec<_> = choices.iter().map(|choice| choice.as_str().unwrap_or_default()).collect();
            return wrong(format!("is {value}, and must be one of {}", choices.join(", ")));
        }
        if let (Some(least), Some(number)) = (self.here["minimum"].as_i64(), value.as_i64())
            && number < least
        {
            return wrong(format!("is {number}, and must be {least} at least"));
        }
        if let (Some(pattern), Some(text)) = (self.here["pattern"].as_str(), value.as_str()) {
            let chart = |error: regex::Error| Error::Chart { file: "values.schema.json", reason: error.to_string() };
            if !regex::Regex::new(pattern).map_err(chart)?.is_match(text) {
                let examples: Vec<_> =
                    self.here["examples"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                return wrong(format!("is {text:?}, and must be such as {}", examples.join(" or ")));
            }
        }
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    let property = self.property(name);
                    property.map_err(|reason| Error::Value { path: path.clone(), reason })?.check_at(&path, value)?;
                }
                let required = self.here["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                match required.into_iter().find(|name| !map.contains_key(*name)) {
                    Some(name) => wrong(format!("lacks {name}, which has no default")),
                    None => Ok(()),
                }
            }
            Value::Array(items) if self.here["items"].is_object() => {
                let schema = self.part(&self.here["items"]);
                items
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, item)| schema.check_at(&format!("{path}[{index}]"), item))
            }
            _ => Ok(()),
        }
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    }
}
