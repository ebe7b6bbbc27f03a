//! Labels of connection metrics.

use std::fmt;

use leno_model::{Identity, Locality, Name, Service, ServiceName, Workload};
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};

/// Value of a label that is not known.
const UNKNOWN: &str = "unknown";

/// Value of labels that were given up because there were too many distinct ones.
const OVERFLOW: &str = "overflow";

/// Which end reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reporter {
    /// The proxy of the source.
    Source,
    /// The proxy of the destination.
    Destination,
    /// A waypoint between them.
    Waypoint,
}

impl Reporter {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Waypoint => "waypoint",
        }
    }
}

/// How a connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SecurityPolicy {
    /// The connection is in the clear.
    #[default]
    Unknown,
    /// Both ends authenticated, everything encrypted.
    MutualTls,
}

impl SecurityPolicy {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => UNKNOWN,
            Self::MutualTls => "mutual_tls",
        }
    }
}

/// Why a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResponseFlags {
    /// Policy denied it.
    Deny,
    /// The destination could not be connected to.
    Connect,
    /// TLS failed.
    TlsFailure,
    /// HTTP/2 failed.
    H2Handshake,
    /// Something between the nodes drops packets; most often a NetworkPolicy.
    NetworkPolicy,
    /// A certificate could not be had, or an identity was not the expected one.
    Identity,
    /// A certificate is revoked.
    CertificateRevoked,
    /// A pod or a peer has as many connections as it may have.
    ResourceLimit,
}

impl ResponseFlags {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "DENY",
            Self::Connect => "CONNECT",
            Self::TlsFailure => "TLS_FAILURE",
            Self::H2Handshake => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::Identity => "IDENTITY_ERROR",
            Self::CertificateRevoked => "CERT_REVOKED",
            Self::ResourceLimit => "RESOURCE_LIMIT",
        }
    }
}

/// One end of a connection. What is `None` or empty reads `unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct End {
    workload: Option<Name>,
    canonical_service: Option<Name>,
    canonical_revision: Option<Name>,
    namespace: Option<Name>,
    principal: Option<Identity>,
    cluster: Option<Name>,
    region: Option<Name>,
    zone: Option<Name>,
}

impl End {
    fn set_workload(&mut self, workload: &Workload) {
        let Locality { region, zone, .. } = &workload.locality;
        self.workload = Some(workload.workload_name.clone());
        self.canonical_service = Some(workload.canonical_name.clone());
        self.canonical_revision = Some(workload.canonical_revision.clone());
        self.namespace = Some(workload.namespace.clone());
        self.cluster = Some(workload.cluster_id.clone());
        self.region = Some(region.clone());
        self.zone = Some(zone.clone());
    }
}

/// Labels of a connection: built once per connection, from the mesh's own (shared) names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionLabels {
    reporter: Reporter,
    source: End,
    destination: End,
    service: Option<(ServiceName, Name)>,
    security: SecurityPolicy,
    overflow: bool,
}

impl ConnectionLabels {
    /// Labels of a connection of which nothing is known yet.
    pub fn new(reporter: Reporter) -> Self {
        Self {
            reporter,
            source: End::default(),
            destination: End::default(),
            service: None,
            security: SecurityPolicy::Unknown,
            overflow: false,
        }
    }

    /// The source workload.
    #[must_use]
    pub fn source(mut self, workload: &Workload) -> Self {
        self.source.set_workload(workload);
        self
    }

    /// The destination workload.
    #[must_use]
    pub fn destination(mut self, workload: &Workload) -> Self {
        self.destination.set_workload(workload);
        self
    }

    /// The source's proven identity.
    #[must_use]
    pub fn source_principal(mut self, identity: Identity) -> Self {
        self.source.principal = Some(identity);
        self
    }

    /// The destination's proven identity.
    #[must_use]
    pub fn destination_principal(mut self, identity: Identity) -> Self {
        self.destination.principal = Some(identity);
        self
    }

    /// The service the program asked for.
    #[must_use]
    pub fn service(mut self, service: &Service) -> Self {
        self.service = Some((service.id.clone(), service.name.clone()));
        self
    }

    /// How the connection is protected.
    #[must_use]
    pub fn security(mut self, security: SecurityPolicy) -> Self {
        self.security = security;
        self
    }

    /// Which end reports.
    pub fn reporter(&self) -> Reporter {
        self.reporter
    }

    /// The set that stands for all that found no place.
    pub(super) fn overflow(reporter: Reporter) -> Self {
        Self { overflow: true, ..Self::new(reporter) }
    }

    pub(super) fn with_flags<'a>(&'a self, flags: Option<ResponseFlags>) -> Flagged<'a> {
        self.of_requests("tcp", Some(flags.map_or("-", ResponseFlags::as_str)))
    }

    pub(super) fn of_requests<'a>(&'a self, protocol: &'static str, flags: Option<&'static str>) -> Flagged<'a> {
        Flagged { labels: self, protocol, flags, status: None }
    }
}

/// Labels together with those of one outcome, as they are written.
#[derive(Debug)]
pub(super) struct Flagged<'a> {
    labels: &'a ConnectionLabels,
    protocol: &'static str,
    flags: Option<&'static str>,
    status: Option<Status>,
}

/// What a response says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Status {
    /// The HTTP status, and the one of gRPC where there is one.
    Known(u16, Option<u16>),
    /// It was given up, because there were too many distinct ones.
    Overflow,
}

impl Flagged<'_> {
    pub(super) fn with_status(self, status: Status) -> Self {
        Self { status: Some(status), ..self }
    }
}

impl EncodeLabelSet for Flagged<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let labels = self.labels;
        let missing = if labels.overflow { OVERFLOW } else { UNKNOWN };
        let known = |value: Option<&Name>| match value {
            Some(value) if !value.is_empty() => value.to_string(),
            _ => missing.to_owned(),
        };
        let mut put = |key: &str, value: &str| (key, value).encode(encoder.encode_label());
        let put_end = |put: &mut dyn FnMut(&str, &str) -> fmt::Result, side: &str, end: &End| {
            let principal = end.principal.as_ref().map_or_else(|| missing.to_owned(), ToString::to_string);
            // Istio's `app` and `version` are the canonical ones too.
            let [service, revision] = [&end.canonical_service, &end.canonical_revision].map(|v| known(v.as_ref()));
            put(&format!("{side}_workload"), &known(end.workload.as_ref()))?;
            put(&format!("{side}_canonical_service"), &service)?;
            put(&format!("{side}_canonical_revision"), &revision)?;
            put(&format!("{side}_workload_namespace"), &known(end.namespace.as_ref()))?;
            put(&format!("{side}_principal"), &principal)?;
            put(&format!("{side}_app"), &service)?;
            put(&format!("{side}_version"), &revision)?;
            put(&format!("{side}_cluster"), &known(end.cluster.as_ref()))
        };
        put("reporter", labels.reporter.as_str())?;
        put_end(&mut put, "source", &labels.source)?;
        let (id, name) = labels.service.as_ref().map(|(id, name)| (id, name)).unzip();
        put("destination_service", &known(id.map(|id| &id.hostname)))?;
        put("destination_service_namespace", &known(id.map(|id| &id.namespace)))?;
        put("destination_service_name", &known(name))?;
        put_end(&mut put, "destination", &labels.destination)?;
        put("request_protocol", self.protocol)?;
        match self.status {
            None => {}
            Some(Status::Overflow) => put("response_code", OVERFLOW)?,
            Some(Status::Known(http, grpc)) => {
                put("response_code", &http.to_string())?;
                put("grpc_response_status", &grpc.map(|status| status.to_string()).unwrap_or_default())?;
            }
        }
        if let Some(flags) = self.flags {
            put("response_flags", flags)?;
        }
        put("connection_security_policy", labels.security.as_str())?;
        for (side, end) in [("source", &labels.source), ("destination", &labels.destination)] {
            for (what, value) in [("region", &end.region), ("zone", &end.zone)] {
                if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                    put(&format!("{side}_{what}"), value)?;
                }
            }
        }
        Ok(())
    }
}
