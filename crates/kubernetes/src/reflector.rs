//! Keeps the objects of one kind as the API server has them: lists them, then watches for changes.
//!
//! A watch that ends goes on where it was. One whose version is too old (410) begins again with a list. While the API
//! server is away, what was known stays.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use leno_objects::{Change, Kind, Object};
use leno_telemetry::ReadyTask;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::lines::Lines;
use crate::resource::Resource;
use crate::wire::{self, Event};
use crate::{Client, Error};

/// Seconds after which the API server ends a watch, so that a new one may reach another of its replicas.
const WATCH: u64 = 290;
/// A watch that is silent for this long is dead: the API server sends a bookmark about every minute.
const SILENCE: Duration = Duration::from_secs(150);
/// A watch that ends sooner than this, without an event, was no success.
const SHORT: Duration = Duration::from_secs(1);
/// How often a kind that the API server does not have is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// How long a kind must be missing before its objects count as gone. Somebody may be replacing its definition, and an
/// API server that just started does not have all definitions yet.
const ABSENCE: Duration = Duration::from_secs(10);
/// After so many refusals of a watch in a row, the objects are listed again.
const PATIENCE: u32 = 3;
/// Longest event, bytes. etcd refuses objects of more than 1.5 MiB; what manages their fields may double them.
const MAX_EVENT: usize = 16 << 20;

/// Where the objects of a kind go.
pub(crate) trait Sink {
    /// Takes a page of a list, and returns its objects as they are to be handed to [`Self::complete`]. `first` says that no
    /// list was complete yet.
    fn page(&self, objects: Vec<Object>, first: bool) -> Vec<Arc<Object>>;
    /// Takes the list of all objects.
    fn complete(&self, kind: Kind, all: Vec<Arc<Object>>);
    /// Takes changes.
    fn changed(&self, changes: Vec<Change>);
    /// Whether it holds objects of this kind.
    fn holds(&self, kind: Kind) -> bool;
}

/// Brings the objects of one kind.
pub(crate) struct Reflector<'a, S> {
    client: &'a Client,
    sink: &'a S,
    kind: Kind,
    /// Only these objects, by their fields; empty for all.
    fields: &'a str,
    ready: ReadyTask,
    /// Whether all objects have come once.
    complete: bool,
    /// Since when the API server says that it does not have this kind.
    missing_since: Option<Instant>,
}

/// Where a watch begins.
struct Position {
    resource: Resource,
    version: String,
}

/// How a watch ended.
struct Ended {
    /// Where the next one begins; `None` if a new list is needed.
    next: Option<Position>,
    /// Whether it worked for a while.
    worked: bool,
    error: Option<Error>,
}

impl<'a, S: Sink> Reflector<'a, S> {
    pub(crate) fn new(client: &'a Client, sink: &'a S, kind: Kind, ready: ReadyTask) -> Self {
        Self { client, sink, kind, fields: "", ready, complete: false, missing_since: None }
    }

    /// Only objects that this field selector selects.
    pub(crate) fn of_fields(self, fields: &'a str) -> Self {
        Self { fields, ..self }
    }

    /// Never returns.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new();
        let mut position: Option<Position> = None;
        loop {
            let failure = match position.take() {
                None => match self.list().await {
                    Ok(Some(listed)) => {
                        position = Some(listed);
                        self.works(&mut backoff);
                        None
                    }
                    Ok(None) => {
                        self.works(&mut backoff);
                        sleep(LOOK_AGAIN.mul_f64(rand::random_range(0.8..1.2))).await;
                        None
                    }
                    Err(error) => Some(error),
                },
                Some(from) => {
                    let ended = self.watch(from).await;
                    position = ended.next;
                    if ended.worked {
                        self.works(&mut backoff);
                    }
                    // It may never serve this version, for example if its data was restored from a backup.
                    let refused = ended.error.as_ref().is_some_and(|error| error.status().is_some());
                    if refused && backoff.failures() >= PATIENCE {
                        position = None;
                    }
                    match ended.error {
                        None if ended.worked => None,
                        // It is not an error, but must not be done in a tight loop.
                        None => {
                            sleep(backoff.wait(None)).await;
                            None
                        }
                        Some(error) => Some(error),
                    }
                }
            };
            if let Some(error) = failure {
                self.failed(&error, &mut backoff).await;
            }
        }
    }

    /// Brings all objects once.
    pub(crate) async fn list_once(mut self) -> Result<(), Error> {
        self.list().await.map(drop)
    }

    fn works(&self, backoff: &mut Backoff) {
        let failures = backoff.reset();
        if failures > 0 {
            tracing::info!(kind = %self.kind, failures, "the API server answers again");
        }
    }

    async fn failed(&mut self, error: &Error, backoff: &mut Backoff) {
        if !self.complete {
            self.ready.not_ready(error.to_string());
        }
        // What is wrong is said once, not with every attempt. An expired version is part of the protocol.
        if error.is_expired() {
            tracing::debug!(kind = %self.kind, "listing again: {error}");
        } else if backoff.failures() == 0 {
            let effect =
                if self.complete { "what is known of them stays" } else { "nothing is served before they are known" };
            tracing::warn!(kind = %self.kind, "objects can't be followed, {effect}: {error}");
        } else {
            tracing::debug!(kind = %self.kind, failures = backoff.failures(), "still: {error}");
        }
        sleep(backoff.wait(error.retry_after())).await;
    }

    /// Takes in all objects. Returns where to watch from; `None` if the API server does not have this kind.
    async fn list(&mut self) -> Result<Option<Position>, Error> {
        for resource in Resource::versions(self.kind) {
            match self.list_version(resource).await {
                Ok(version) => {
                    self.missing_since = None;
                    return Ok(Some(Position { resource, version }));
                }
                Err(error) if error.is_not_found() && Resource::is_optional(self.kind) => {}
                Err(error) => return Err(error),
            }
        }
        let since = *self.missing_since.get_or_insert_with(|| {
            tracing::info!(kind = %self.kind, "the API server does not know this kind; looking for it again from time to time");
            Instant::now()
        });
        if !self.sink.holds(self.kind) || since.elapsed() >= ABSENCE {
            self.completed(Vec::new());
        }
        Ok(None)
    }

    /// Takes in all objects in one version of the kind. Returns the version of the list.
    async fn list_version(&mut self, resource: Resource) -> Result<String, Error> {
        let mut all = Vec::new();
        let mut continue_at = None;
        loop {
            let path = resource.list(self.fields, continue_at.as_deref());
            let bytes = self.client.bytes(Method::GET, &path, None).await?;
            let page = wire::page(self.kind, &bytes).map_err(|reason| self.client.malformed(&path, reason))?;
            drop(bytes);
            all.extend(self.sink.page(page.objects, !self.complete));
            match page.continue_at {
                Some(token) => continue_at = Some(token),
                None => {
                    self.completed(all);
                    return Ok(page.version);
                }
            }
        }
    }

    fn completed(&mut self, all: Vec<Arc<Object>>) {
        tracing::debug!(kind = %self.kind, objects = all.len(), "listed");
        self.sink.complete(self.kind, all);
        self.complete = true;
        self.ready.ready();
    }

    /// Takes in changes for as long as the API server tells them.
    async fn watch(&self, mut at: Position) -> Ended {
        let began = Instant::now();
        let path = at.resource.watch(self.fields, &at.version, WATCH);
        let mut body = match self.client.stream(&path).await {
            Ok(body) => body,
            // Only a list tells whether the kind is gone.
            Err(error) => {
                let next = (!error.is_expired() && !error.is_not_found()).then_some(at);
                return Ended { next, worked: false, error: Some(error) };
            }
        };
        let mut lines = Lines::default();
        let mut any = false;
        let error = loop {
            let chunk = match timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => break Some(self.client.unreachable(error)),
                Ok(None) => break None,
                Err(_) => {
                    let server = self.client.server().to_owned();
                    let asked = format!("a watch of {}", self.kind.plural());
                    break Some(Error::Timeout { server, asked, waited: SILENCE });
                }
            };
            lines.push(&chunk);
            match self.events(&mut lines, &mut at) {
                Ok(events) => any |= events > 0,
                Err(error) => {
                    let next = (!must_list(&error)).then_some(at);
                    return Ended { next, worked: any, error: Some(error) };
                }
            }
        };
        Ended { next: Some(at), worked: any || began.elapsed() >= SHORT, error }
    }

    /// Takes in the events that are complete, together. Returns how many there were.
    fn events(&self, lines: &mut Lines, at: &mut Position) -> Result<usize, Error> {
        let asked = || format!("a watch of {}", self.kind.plural());
        let mut changes = Vec::new();
        let mut events = 0;
        let mut outcome = Ok(());
        while let Some(line) = lines.next() {
            match wire::event(self.kind, &line) {
                Ok((event, version)) => {
                    match event {
                        Event::Upsert(object) => changes.push(Change::Upsert(Arc::from(object))),
                        Event::Remove(key) => changes.push(Change::Remove(key)),
                        Event::Bookmark => {}
                        Event::Failed { code, message } => {
                            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                            outcome = Err(Error::Refused { asked: asked(), status, message, retry_after: None });
                            break;
                        }
                    }
                    events += 1;
                    if let Some(version) = version {
                        at.version = version;
                    }
                }
                Err(reason) => {
                    outcome = Err(self.client.malformed(&asked(), reason));
                    break;
                }
            }
        }
        if outcome.is_ok() && lines.len() > MAX_EVENT {
            outcome = Err(self.client.malformed(&asked(), format!("an event is longer than {MAX_EVENT} bytes")));
        }
        if !changes.is_empty() {
            self.sink.changed(changes);
        }
        outcome.map(|()| events)
    }
}

/// Whether a watch that ended like this can't go on where it was.
fn must_list(error: &Error) -> bool {
    error.is_expired() || matches!(error, Error::Malformed { .. })
}

#[cfg(test)]
#[path = "reflector_tests.rs"]
mod tests;
