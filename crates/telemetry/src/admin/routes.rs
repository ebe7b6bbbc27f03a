//! Routes that every role has.

use http::header::ACCEPT;
use http::{Method, StatusCode};

use super::scrapes::Scrapes;
use super::{Answer, Request, Routes, text, typed};
use crate::Readiness;
use crate::logging::LogHandle;
use crate::metrics::{OPEN_METRICS_CONTENT_TYPE, Page, TEXT_CONTENT_TYPE};

/// `GET /healthz/ready`: 200 `ready`, or 500 with what it waits for.
pub fn readiness(readiness: &Readiness) -> Routes {
    let readiness = readiness.clone();
    Routes::new().get("/healthz/ready", move |_| {
        let pending = readiness.pending();
        if pending.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let mut body = "not ready, waiting for:\n".to_owned();
        for (name, reason) in pending {
            body.extend(["- ", &name, ": ", &reason, "\n"]);
        }
        text(StatusCode::INTERNAL_SERVER_ERROR, body)
    })
}

/// `GET /metrics` and `GET /stats/prometheus`, in the format the scraper asks for.
pub fn metrics(page: &Page) -> Routes {
    let (classic, open) = (page.clone(), page.clone());
    let classic = Scrapes::new(move || classic.encode());
    let open = Scrapes::new(move || open.encode_open_metrics());
    let scrape = move |request: Request| {
        let wants_open = request
            .headers
            .get_all(ACCEPT)
            .iter()
            .any(|accept| accept.as_bytes().windows(28).any(|part| part == b"application/openmetrics-text"));
        let (scrapes, content_type) =
            if wants_open { (&open, OPEN_METRICS_CONTENT_TYPE) } else { (&classic, TEXT_CONTENT_TYPE) };
        let scrape = scrapes.clone().scrape();
        async move {
            match scrape.await {
                Ok(body) => typed(StatusCode::OK, content_type, body),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics can't be written: {error}\n")),
            }
        }
    };
    Routes::new().add(Method::GET, "/metrics", scrape.clone()).add(Method::GET, "/stats/prometheus", scrape)
}

/// `POST /logging`: `?level=` sets a level or a list of `module=level`; `?reset` goes back to the level at the start.
/// Answers with the level in force. `GET` only shows it.
pub fn logging(log: &LogHandle) -> Routes {
    let change = |log: LogHandle| {
        move |request: Request| -> Answer {
            let result = if request.method != Method::POST {
                Ok(())
            } else if let Some(filter) = request.parameter("level") {
                log.set(&filter)
            } else if request.parameter("reset").is_some() {
                log.reset()
            } else {
                Ok(())
            };
            match result {
                Ok(()) => text(StatusCode::OK, format!("current log level is {}\n", log.current())),
                Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
            }
        }
    };
    Routes::new().get("/logging", change(log.clone())).post("/logging", change(log.clone()))
}
