//! The format of a line. Values come from the network and from users. Whatever they contain, a line stays one line and
//! a field one field.

use std::fmt::{Display, Write as _};
use std::io::Write;
use std::time::SystemTime;

use leno_model::Name;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::{Endpoint, Happened, Level, Line, Record, Request};
use crate::logging::Format;

const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// The output of a line's fields.
trait Fields {
    /// Text in quotes.
    fn text(&mut self, key: &'static str, value: &dyn Display);
    /// A word that needs no quotes: addresses.
    fn word(&mut self, key: &'static str, value: &dyn Display);
    fn number(&mut self, key: &'static str, value: u64);
}

pub(super) fn line(out: &mut Vec<u8>, format: Format, line: &Line) {
    let message = match line.happened {
        _ if line.record.request.is_some() => "request complete",
        Happened::Opened => "connection opened",
        Happened::Completed => "connection complete",
        Happened::Refused => "connection failed",
    };
    let head = Head { time: line.time, level: line.level, message };
    write(out, format, &head, |fields| record(fields, &line.record, line.happened == Happened::Opened));
}

/// Notes that lines are missing here.
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

/// As the log writes it: UTC, with microseconds.
pub(crate) fn time(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(TIME).unwrap_or_default()
}

fn write(out: &mut Vec<u8>, format: Format, head: &Head<'_>, fill: impl FnOnce(&mut dyn Fields)) {
    let time = time(head.time);
    let level = match head.level {
        Level::Off | Level::Error => "error",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    match format {
        Format::Plain => {
            let mut text = Text(String::with_capacity(USUAL));
            text.0.extend([&time, "\t", level, "\taccess\t", head.message, "\t"]);
            fill(&mut text);
            out.extend_from_slice(text.0.trim_end().as_bytes());
        }
        Format::Json => {
            let mut json = Json(Map::new());
            json.text("level", &level);
            json.text("time", &time);
            json.text("scope", &"access");
            json.text("message", &head.message);
            fill(&mut json);
            // It can't fail: it writes to memory, and a map of strings and numbers always has a JSON form.
            let _ = serde_json::to_writer(&mut *out, &Value::Object(json.0));
        }
    }
    let _ = out.write_all(b"\n");
}

fn record(fields: &mut dyn Fields, record: &Record, opened: bool) {
    end(fields, &SOURCE, &record.source, |_| {});
    end(fields, &DESTINATION, &record.destination, |fields| {
        if let Some(address) = &record.hbone_address {
            fields.word("dst.hbone_addr", address);
        }
        if let Some(service) = &record.service {
            fields.text("dst.service", service);
        }
    });
    fields.text("direction", &record.direction.as_str());
    if !opened {
        fields.number("bytes_sent", record.bytes_sent);
        fields.number("bytes_recv", record.bytes_received);
        fields.text("duration", &format_args!("{}ms", record.duration.as_millis()));
    }
    if let Some(request) = &record.request {
        http_request(fields, request);
    }
    if let Some(id) = record.trace_id {
        fields.text("trace_id", &format_args!("{id:032x}"));
    }
    if !record.dry_run.is_empty() {
        fields.text("dry_run", &record.dry_run.join("; "));
    }
    if !record.fail_open.is_empty() {
        fields.text("fail_open", &record.fail_open.join("; "));
    }
    if let Some(error) = &record.error {
        fields.text("error", error);
    }
}

fn http_request(fields: &mut dyn Fields, request: &Request) {
    fields.text("method", &request.method);
    fields.text("authority", &request.authority);
    fields.text("path", &request.path);
    fields.text("protocol", &request.protocol);
    fields.number("response_code", request.status.into());
    if let Some(status) = request.grpc_status {
        fields.number("grpc_status", status.into());
    }
    fields.text("response_flags", &request.flags);
    if let Some(route) = &request.route {
        fields.text("route", route);
    }
    if !request.id.is_empty() {
        fields.text("request_id", &request.id);
    }
    if request.attempts > 1 {
        fields.number("attempts", request.attempts.into());
    }
}

/// The field names of one end of a connection.
struct Keys {
    address: &'static str,
    workload: &'static str,
    namespace: &'static str,
    identity: &'static str,
    cluster: &'static str,
}

const SOURCE: Keys = Keys {
    address: "src.addr",
    workload: "src.workload",
    namespace: "src.namespace",
    identity: "src.identity",
    cluster: "src.cluster",
};

const DESTINATION: Keys = Keys {
    address: "dst.addr",
    workload: "dst.workload",
    namespace: "dst.namespace",
    identity: "dst.identity",
    cluster: "dst.cluster",
};

fn end(fields: &mut dyn Fields, keys: &Keys, end: &Endpoint, after_address: impl FnOnce(&mut dyn Fields)) {
    if let Some(address) = end.address {
        fields.word(keys.address, &address);
    }
    after_address(fields);
    let workload = end.workload.as_deref();
    name(fields, keys.workload, workload.map(|workload| &workload.name));
    name(fields, keys.namespace, workload.map(|workload| &workload.namespace));
    if let Some(identity) = &end.identity {
        fields.text(keys.identity, identity);
    }
    name(fields, keys.cluster, workload.map(|workload| &workload.cluster_id));
}

fn name(fields: &mut dyn Fields, key: &'static str, name: Option<&Name>) {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        fields.text(key, name);
    }
}

/// Initial capacity, bytes: most lines are a little shorter.
const USUAL: usize = 768;

struct Text(String);

impl Text {
    /// Writes `value` unchanged, and returns where it begins.
    fn raw(&mut self, value: &dyn Display) -> usize {
        let start = self.0.len();
        let _ = write!(self.0, "{value}");
        start
    }
}

impl Fields for Text {
    fn text(&mut self, key: &'static str, value: &dyn Display) {
        self.0.extend([key, "=\""]);
        let start = self.raw(value);
        if !self.0.as_bytes()[start..].iter().all(|&b| is_harmless(b)) {
            let raw = self.0.split_off(start);
            escape(&mut self.0, &raw);
        }
        self.0.push_str("\" ");
    }

    fn word(&mut self, key: &'static str, value: &dyn Display) {
        let before = self.0.len();
        self.0.extend([key, "="]);
        let start = self.raw(value);
        let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'[' | b']' | b'-' | b'_' | b'%');
        if self.0.as_bytes()[start..].iter().all(plain) {
            self.0.push(' ');
        } else {
            self.0.truncate(before);
            self.text(key, value);
        }
    }

    fn number(&mut self, key: &'static str, value: u64) {
        let _ = write!(self.0, "{key}={value} ");
    }
}

/// Whether a byte is harmless. Text of such bytes needs no further check.
fn is_harmless(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Escape sequences of terminals begin with a control character. Line separators and text direction marks
            // could make a reader see another line.
            c if c.is_control() || is_deceptive(c) => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
}

fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

struct Json(Map<String, Value>);

impl Fields for Json {
    fn text(&mut self, key: &'static str, value: &dyn Display) {
        self.0.insert(key.to_owned(), value.to_string().into());
    }

    fn word(&mut self, key: &'static str, value: &dyn Display) {
        self.text(key, value);
    }

    fn number(&mut self, key: &'static str, value: u64) {
        self.0.insert(key.to_owned(), value.into());
    }
}
