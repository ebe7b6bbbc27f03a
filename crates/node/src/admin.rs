//! The proxy's own endpoints: admin on loopback (15000), metrics (15020), readiness (15021).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::StatusCode;
use leno_telemetry::Readiness;
use leno_capture::zds;
use leno_telemetry::admin::{self, Routes, text};
use leno_telemetry::logging::LogHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config_dump;
use crate::pod::Context;
use crate::pods::Pods;

/// Opens the endpoints and serves them until `stop`. `drain` starts an orderly shutdown.
pub(crate) async fn start(
    context: &Arc<Context>,
    pods: &Arc<Pods>,
    agent: &Arc<zds::Client>,
    readiness: &Readiness,
    log: &LogHandle,
    drain: &CancellationToken,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let config = &context.config;
    let admin = {
        let (context, pods, drain) = (context.clone(), pods.clone(), drain.clone());
        let agent = agent.status();
        Routes::new()
            .get("/config_dump", move |_| admin::json(&config_dump::dump(&context, &pods, &agent.borrow())))
            .post("/quitquitquit", move |_| {
                drain.cancel();
                text(StatusCode::OK, "shutting down\n")
            })
            .merge(admin::logging(log))
    };
    let everywhere = if config.ipv6 {
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))].to_vec()
    } else {
        [SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))].to_vec()
    };
    let loopback = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))];
    let stats = admin::metrics(&context.metrics);
    let ready = admin::readiness(readiness);
    serve_any("the admin endpoint", &loopback, config.admin_port, Each::All, &admin, stop).await?;
    serve_any("metrics", &everywhere, config.stats_port, Each::First, &stats, stop).await?;
    serve_any("readiness", &everywhere, config.readiness_port, Each::First, &ready, stop).await
}

/// On how many of the addresses to listen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Each {
    /// On the first that can be had: it stands for the others.
    First,
    /// On all that can be had.
    All,
}

async fn serve_any(
    purpose: &'static str,
    addresses: &[SocketAddr],
    port: u16,
    each: Each,
    routes: &Routes,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut failed = None;
    let mut serving = false;
    for address in addresses {
        let address = SocketAddr::new(address.ip(), port);
        match TcpListener::bind(address).await {
            Ok(listener) => {
                serving = true;
                tokio::spawn(admin::serve(listener, routes.clone(), stop.clone().cancelled_owned()));
                if each == Each::First {
                    return Ok(());
                }
            }
            // A family this machine lacks is no failure as long as the other one works.
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
    match failed {
        Some(error)
            if !serving
                || matches!(&error, Error::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}
