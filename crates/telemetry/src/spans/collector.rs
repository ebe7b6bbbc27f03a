//! Where a collector is, and how it is spoken to.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// Where a collector takes spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    pub(super) host: String,
    port: Option<u16>,
    /// What its paths begin with.
    prefix: String,
}

impl FromStr for Collector {
    type Err = String;

    /// Of what `OTEL_EXPORTER_OTLP_ENDPOINT` says: over HTTP, `/v1/traces` is appended to its path. gRPC has paths of its own.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} is no collector: {why}; write http://HOST:PORT");
        let uri: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong("TLS is not spoken here; the mesh encrypts where the collector is in it"));
            }
            _ => return Err(wrong("it has no scheme")),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Collector {
    pub(super) fn port(&self, protocol: Protocol) -> u16 {
        self.port.unwrap_or(protocol.port())
    }

    pub(super) fn path(&self, protocol: Protocol) -> String {
        match protocol {
            Protocol::HttpProtobuf | Protocol::HttpJson => format!("{}/v1/traces", self.prefix),
            Protocol::Grpc => "/opentelemetry.proto.collector.trace.v1.TraceService/Export".to_owned(),
        }
    }

    /// Host and port, as a URL has them.
    pub(super) fn authority(&self, protocol: Protocol) -> String {
        let port = self.port(protocol);
        if self.host.contains(':') { format!("[{}]:{port}", self.host) } else { format!("{}:{port}", self.host) }
    }
}

/// How spans are written for a collector, and what carries them (`OTEL_EXPORTER_OTLP_PROTOCOL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Protobuf over HTTP/1.1: what OpenTelemetry recommends as the default.
    #[default]
    HttpProtobuf,
    /// JSON over HTTP/1.1.
    HttpJson,
    /// gRPC.
    Grpc,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::HttpProtobuf, Self::HttpJson, Self::Grpc];

    /// Where collectors listen for it, unless they are told otherwise.
    pub(super) fn port(self) -> u16 {
        match self {
            Self::HttpProtobuf | Self::HttpJson => 4318,
            Self::Grpc => 4317,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HttpProtobuf => "http/protobuf",
            Self::HttpJson => "http/json",
            Self::Grpc => "grpc",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|protocol| protocol.to_string() == text);
        named.ok_or_else(|| format!("{text:?} is no protocol for spans; write http/protobuf, http/json or grpc"))
    }
}
