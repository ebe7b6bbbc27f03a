//! How a line looks. Values come from the network and from users: whatever they hold, a line
//! stays one line and a field one field.

use std::fmt::Write as _;
use std::io::Write;
use std::time::SystemTime;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::queue::Line;
use super::{Endpoint, Level, Record};
use crate::logging::Format;

const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// Where fields of a line go.
trait Fields {
    /// Text in quotes.
    fn text(&mut self, key: &str, value: &str);
    /// A word that needs no quotes: numbers, addresses.
    fn word(&mut self, key: &str, value: &str);
    fn number(&mut self, key: &str, value: u64);
}

pub(super) fn line(out: &mut Vec<u8>, format: Format, line: &Line) {
    let head = Head { time: line.time, level: line.level, message: line.message };
    write(out, format, &head, |fields| record(fields, &line.record, line.message == "connection opened"));
}

/// Says that lines are missing here.
pub(super) fn gap(out: &mut Vec<u8>, format: Format, time: SystemTime, lines: u64) {
    let head =
        Head { time, level: Level::Error, message: "access log lines dropped: the log was not written fast enough" };
    write(out, format, &head, |fields| fields.number("dropped", lines));
}

struct Head<'a> {
    time: SystemTime,
    level: Level,
    message: &'a str,
}

fn write(out: &mut Vec<u8>, format: Format, head: &Head<'_>, fill: impl FnOnce(&mut dyn Fields)) {
    let time = OffsetDateTime::from(head.time).format(TIME).unwrap_or_default();
    let level = match head.level {
        Level::Off | Level::Error => "error",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    match format {
        Format::Plain => {
            let mut text = Text(format!("{time}\t{level}\taccess\t{}\t", head.message));
            fill(&mut text);
            out.extend_from_slice(text.0.trim_end().as_bytes());
        }
        Format::Json => {
            let mut json = Json(Map::new());
            json.text("level", level);
            json.text("time", &time);
            json.text("scope", "access");
            json.text("message", head.message);
            fill(&mut json);
            // Writing to memory; a map of strings and numbers always has a JSON form.
            let _ = serde_json::to_writer(&mut *out, &Value::Object(json.0));
        }
    }
    let _ = out.write_all(b"\n");
}

fn record(fields: &mut dyn Fields, record: &Record, opened: bool) {
    end(fields, "src", &record.source, |_| {});
    end(fields, "dst", &record.destination, |fields| {
        if let Some(address) = &record.hbone_address {
            fields.word("dst.hbone_addr", &address.to_string());
        }
        if let Some(service) = &record.service {
            fields.text("dst.service", service);
        }
    });
    fields.text("direction", record.direction.as_str());
    if !opened {
        fields.number("bytes_sent", record.bytes_sent);
        fields.number("bytes_recv", record.bytes_received);
        fields.text("duration", &format!("{}ms", record.duration.as_millis()));
    }
    if let Some(id) = record.trace_id {
        fields.text("trace_id", &format!("{id:032x}"));
    }
    if !record.dry_run.is_empty() {
        fields.text("dry_run", &record.dry_run.join("; "));
    }
    if let Some(error) = &record.error {
        fields.text("error", error);
    }
}

fn end(fields: &mut dyn Fields, side: &str, end: &Endpoint, after_address: impl FnOnce(&mut dyn Fields)) {
    if let Some(address) = end.address {
        fields.word(&format!("{side}.addr"), &address.to_string());
    }
    after_address(fields);
    let identity = end.identity.as_ref().map(ToString::to_string);
    for (key, value) in [
        ("workload", end.workload.as_deref()),
        ("namespace", end.namespace.as_deref()),
        ("identity", identity.as_deref()),
        ("cluster", end.cluster.as_deref()),
    ] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            fields.text(&format!("{side}.{key}"), value);
        }
    }
}

struct Text(String);

impl Fields for Text {
    fn text(&mut self, key: &str, value: &str) {
        self.0.push_str(key);
        self.0.push_str("=\"");
        for c in value.chars() {
            match c {
                '"' | '\\' => self.0.extend(['\\', c]),
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                // Escape sequences of terminals start with one; line separators and text
                // direction marks could fake another line to a reader.
                c if c.is_control() || is_deceptive(c) => {
                    let _ = write!(self.0, "\\u{{{:x}}}", c as u32);
                }
                c => self.0.push(c),
            }
        }
        self.0.push_str("\" ");
    }

    fn word(&mut self, key: &str, value: &str) {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'[' | b']' | b'-' | b'_' | b'%');
        if value.bytes().all(plain) {
            self.0.extend([key, "=", value, " "]);
        } else {
            self.text(key, value);
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        let _ = write!(self.0, "{key}={value} ");
    }
}

fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

struct Json(Map<String, Value>);

impl Fields for Json {
    fn text(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn word(&mut self, key: &str, value: &str) {
        self.text(key, value);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.0.insert(key.to_owned(), value.into());
    }
}
