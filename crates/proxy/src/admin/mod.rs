//! The proxy's own endpoints: admin on loopback (15000), metrics (15020), readiness (15021).

mod config_dump;
mod status;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::StatusCode;
use leno_telemetry::admin::{self, Routes, text};
use leno_telemetry::logging::LogHandle;
use leno_telemetry::observe;
use leno_xds::client::Status;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::config_dump::ConfigDump;
use self::status::StatusPage;
use crate::carrier::Carrier;
use crate::core::Core;
use crate::error::Error;

pub use self::config_dump::{List, Named};

/// Opens the endpoints and serves them until `stop`. `drain` starts an orderly shutdown. `discovery` is the state of the link
/// to the control plane.
pub(crate) async fn start<C: Carrier>(
    core: &Arc<Core>,
    carrier: &Arc<C>,
    discovery: watch::Receiver<Status>,
    log: Option<&LogHandle>,
    drain: &CancellationToken,
    stop: &CancellationToken,
) -> Result<Endpoints, Error> {
    let config = &core.config;
    let mut admin = {
        let (core, carrier, drain) = (core.clone(), carrier.clone(), drain.clone());
        Routes::new()
            .get("/config_dump", move |_| {
                let dump = ConfigDump::new(&core, &*carrier);
                let trim = core.trim;
                admin::json(move |out| {
                    let written = dump.write(out);
                    drop(dump);
                    trim();
                    written
                })
            })
            .post("/quitquitquit", move |_| {
                drain.cancel();
                text(StatusCode::OK, "shutting down\n")
            })
    };
    let (told_core, told_carrier) = (core.clone(), carrier.clone());
    admin = admin.get("/status", move |_| {
        let page = StatusPage::new(&told_core, &*told_carrier, &discovery);
        admin::json(move |out| serde_json::to_writer_pretty(out, &page.told()).map_err(std::io::Error::from))
    });
    let observed = carrier.clone();
    admin = admin.merge(observe::routes(&core.access_log, &config.node, Arc::new(move || observed.open())));
    if let Some(log) = log {
        admin = admin.merge(admin::logging(log));
    }
    let everywhere = if config.ipv6 {
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))].to_vec()
    } else {
        [SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))].to_vec()
    };
    let loopback = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))];
    let stats = admin::metrics(core.metrics.page());
    let ready = admin::readiness(&core.readiness);
    Ok(Endpoints {
        admin: serve_any("the admin endpoint", &loopback, config.admin_port, Each::All, &admin, stop).await?,
        metrics: serve_any("metrics", &everywhere, config.stats_port, Each::First, &stats, stop).await?,
        readiness: serve_any("readiness", &everywhere, config.readiness_port, Each::First, &ready, stop).await?,
    })
}

/// Ports of a proxy's own endpoints, on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// `/status`, `/config_dump`, `/connections` and the like; on loopback only.
    pub admin: u16,
    /// `/metrics`.
    pub metrics: u16,
    /// `/healthz/ready`.
    pub readiness: u16,
}

/// How many of the addresses to listen on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Each {
    /// The first one that works; the others are not tried.
    First,
    /// All that work.
    All,
}

async fn serve_any(
    purpose: &'static str,
    addresses: &[SocketAddr],
    port: u16,
    each: Each,
    routes: &Routes,
    stop: &CancellationToken,
) -> Result<u16, Error> {
    let mut failed = None;
    let mut serving = None;
    for address in addresses {
        // Port 0 lets the kernel choose. The other address family must then use the port chosen for the first.
        let address = SocketAddr::new(address.ip(), serving.unwrap_or(port));
        let bound = TcpListener::bind(address).await.and_then(|l| Ok((l.local_addr()?.port(), l)));
        match bound {
            Ok((port, listener)) => {
                serving = Some(port);
                tokio::spawn(admin::serve(listener, routes.clone(), stop.clone().cancelled_owned()));
                if each == Each::First {
                    return Ok(port);
                }
            }
            // If this machine lacks one address family, the other one is enough.
            Err(source) => {
                let worse = source.kind() == std::io::ErrorKind::AddrInUse;
                if worse || failed.is_none() {
                    failed = Some(Error::Listen { purpose, address, source });
                }
                if worse {
                    break;
                }
            }
        }
    }
    let taken =
        |error: &Error| matches!(error, Error::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse);
    match (serving, failed) {
        (Some(port), failed) if !failed.as_ref().is_some_and(taken) => Ok(port),
        (_, Some(error)) => Err(error),
        // Unreachable: each address either serves or fails, and there is at least one.
        (_, None) => Ok(port),
    }
}
