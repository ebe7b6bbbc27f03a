//! The process `leno lab-control`: the same control plane as `leno control`, with the lab as its feed.
//!
//! Its parts are the same: controller, translation, discovery and certificates over TLS with tokens, roots that are
//! followed. Only the objects come from standard input instead of files, each as the JSON text that an API server would
//! send. The first line is a [`Spec`]. The following lines:
//!
//! * `+KIND JSON` adds or replaces an object,
//! * `-KIND NAMESPACE NAME` removes one,
//! * `!` applies all changes since the last `!` at once.
//!
//! It writes [`Said`] messages to standard output, logs to standard error, and ends with its standard input.

use std::io::{self, BufRead as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use leno_control::translate::Options;
use leno_control::{CertificatePolicy, ControlPlane, Controller, Feed, Limits, StaticTokens, roots};
use leno_objects::{self as objects, Change, Kind, Mode, ObjectKey};
use leno_telemetry::logging;
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::Error;

/// The first objects are applied in batches of this size, as an API server's pages are.
const PAGE: usize = 500;

/// The first line of standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Spec {
    /// The tokens of the proxies, in the format of `leno control --tokens`.
    pub(super) tokens: String,
}

/// A message of the control plane, one JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "kebab-case")]
pub(super) enum Said {
    /// It listens. Connections wait until the first objects are published.
    Listening {
        /// Its address.
        address: SocketAddr,
        /// Its root certificate.
        root: String,
    },
    /// Something was published.
    Published,
}

/// The process `leno lab-control`.
pub fn control_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let failed =
        |what: &'static str| move |error: &dyn std::error::Error| Error::io(what)(io::Error::other(error.to_string()));
    logging::init(logging::Format::Plain, logging::Target::Stderr, "info")
        .map_err(|error| failed("cannot write a log")(&error))?;
    let mut first = String::new();
    io::stdin().lock().read_line(&mut first).map_err(Error::io("cannot read standard input"))?;
    let spec: Spec = serde_json::from_str(&first).map_err(|source| Error::Spec { what: "control plane", source })?;

    // A thread per core serves, as in `leno control`.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(Error::io("cannot start a runtime"))?;
    runtime.block_on(async {
        let controller = Controller::new(Options::default());
        let tokens = StaticTokens::parse(&spec.tokens).map_err(|error| failed("cannot read the tokens")(&error))?;
        drop(spec);
        let authority = CertificateAuthority::ephemeral("cluster.local", CaOptions::default())
            .map_err(|error| failed("cannot make an authority")(&error))?;
        let authority = Arc::new(authority);
        let signer = CertificatePolicy::new(controller.clone(), authority.clone());
        let limits = Limits::default().within(crate::load::raise_descriptor_limit());
        let plane = ControlPlane::new(controller.clone(), Arc::new(tokens), Arc::new(signer)).with_limits(limits);
        let host = Ipv4Addr::LOCALHOST;
        let acceptor = ControlAcceptor::from_authority(authority.clone(), Vec::new(), vec![host.into()])
            .map_err(|error| failed("cannot make a certificate")(&error))?;
        let listener = TcpListener::bind((host, 0)).await.map_err(Error::io("cannot listen"))?;
        let address = listener.local_addr().map_err(Error::io("cannot listen"))?;
        say(&Said::Listening { address, root: authority.root_pem() })?;

        let mut published = controller.resources();
        let telling = async {
            while published.changed().await.is_ok() {
                say(&Said::Published)?;
            }
            Ok(())
        };
        let (gone, fed) = tokio::sync::oneshot::channel();
        let feeding = controller.clone();
        std::thread::Builder::new()
            .name("objects".to_owned())
            .spawn(move || gone.send(feed(&feeding)))
            .map_err(Error::io("cannot start a thread"))?;
        let rotating = roots::follow(plane.clone(), authority, roots::SPREAD);
        let serving = tokio::spawn(async move { plane.serve(listener, acceptor, std::future::pending()).await });
        tokio::select! {
            _ = serving => Err(Error::io("serving")(io::Error::other("the server ended by mistake"))),
            () = controller.run() => Ok(()),
            () = rotating => Ok(()),
            told = telling => told,
            fed = fed => fed.unwrap_or(Ok(())),
        }
    })
}

/// Applies standard input until it ends.
fn feed(controller: &Controller) -> Result<(), Error> {
    let feed = Feed::announce(controller.clone(), Kind::ALL);
    let mut changes = Vec::new();
    let mut complete = false;
    let mut input = io::BufReader::with_capacity(1 << 16, io::stdin());
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line).map_err(Error::io("cannot read standard input"))? == 0 {
            return Ok(());
        }
        if line == "!\n" {
            feed.apply(std::mem::take(&mut changes));
            // The first batch contains everything.
            feed.complete(Kind::ALL);
            complete = true;
        } else {
            changes.push(change(line.trim_end()).map_err(|reason| {
                Error::io("the feed")(io::Error::new(io::ErrorKind::InvalidData, format!("{reason} in {line:?}")))
            })?);
            if !complete && changes.len() == PAGE {
                feed.apply(std::mem::take(&mut changes));
            }
        }
    }
}

/// The change that one line describes.
fn change(line: &str) -> Result<Change, String> {
    let (verb, rest) = line.split_at_checked(1).ok_or("an empty line")?;
    let (kind, rest) = rest.split_once(' ').ok_or("no kind")?;
    let kind = Kind::ALL.iter().copied().find(|known| known.as_str() == kind).ok_or("an unknown kind")?;
    match verb {
        "+" => {
            let object = objects::decode(kind, Mode::Strict, &mut serde_json::Deserializer::from_str(rest));
            object.map(|decoded| Change::upsert(decoded.object)).map_err(|error| error.to_string())
        }
        "-" => {
            let (namespace, name) = rest.split_once(' ').ok_or("no name")?;
            Ok(Change::Remove(ObjectKey::new(kind, namespace, name)))
        }
        _ => Err("neither + nor -".to_owned()),
    }
}

fn say(said: &Said) -> Result<(), Error> {
    let what = "cannot say what happens";
    let line = serde_json::to_string(said).map_err(|error| Error::io(what)(error.into()))? + "\n";
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(Error::io(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::churn::mesh::Mesh;
    use crate::churn::phase::{Kind as Happening, Shape};

    /// What the generator writes is what the control plane reads, without a warning.
    #[test]
    fn the_feed_is_understood() {
        let mut mesh = Mesh::new(Shape { services: 2, pods: 3, ..Shape::QUICK });
        for line in mesh.objects().collect::<String>().lines() {
            let (kind, json) = line[1..].split_once(' ').unwrap();
            let kind = *Kind::ALL.iter().find(|known| known.as_str() == kind).unwrap();
            let decoded = objects::decode(kind, Mode::Strict, &mut serde_json::Deserializer::from_str(json)).unwrap();
            assert_eq!(decoded.warnings, Vec::<String>::new(), "{line}");
        }
        let change_of = mesh.change(Happening::ReplacePod);
        let both: Vec<Change> = change_of.lines.lines().map(|line| change(line).unwrap()).collect();
        assert!(matches!(&both[..], [Change::Remove(_), Change::Upsert(_)]), "{both:?}");
        for wrong in ["", "+", "+Pod", "+Cat {}", "-Pod a", "?Pod a b", "+Pod {}"] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }
}
