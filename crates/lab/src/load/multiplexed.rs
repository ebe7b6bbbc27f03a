//! HTTP/2 and gRPC requests at a pace. A library speaks HTTP/2; each worker is a thread with a runtime of its own.
//!
//! A *lane* is one of a connection's places for a request. Lanes have the schedule that connections of HTTP/1.1 have: each
//! its own series, in which a request that takes long delays the next one, which then counts from when it was due.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderName, HeaderValue, Method, Request, Version};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::asked::size_in;
use super::conduct::{check, conduct};
use super::grpc::{self, FetchRequest, FetchResponse};
use super::pace::Schedule;
use super::spec::{Event, HttpLoad, HttpOutcome, Pace, Protocol, Reuse};
use super::tally::Tally;
use super::ticks::Ticks;
use crate::Error;

/// The pause before a lane goes on after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// What a server may send before it is told that bytes were read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Runs the load and reports to `events` when the measured time begins and ends.
///
/// # Errors
/// When a kept connection can't be opened at the start, or the kernel has no timer to spare.
pub(super) fn run(
    load: &HttpLoad,
    warmup: Duration,
    duration: Duration,
    events: &mut dyn FnMut(Event),
) -> Result<HttpOutcome, Error> {
    check(load)?;
    if load.walk.is_some() {
        return Err(Error::Usage("a walk needs HTTP/1.1".to_owned()));
    }
    let asked = Asked::new(load)?;
    let workers = load.workers.clamp(1, load.connections);
    let mut shares: Vec<Vec<(usize, Option<TcpStream>)>> = (0..workers).map(|_| Vec::new()).collect();
    let limit = patience(load);
    for connection in 0..load.connections {
        let stream = match load.reuse {
            Reuse::PerRequest => None,
            Reuse::Kept => {
                let what = format!("cannot open connection {connection} to {}", load.target);
                Some(TcpStream::connect_timeout(&load.target, limit).map_err(Error::io(what))?)
            }
        };
        shares[connection % workers].push((connection, stream));
    }
    let lanes = load.connections * load.streams;
    let schedule = Schedule::new(Instant::now(), warmup, duration, lanes, load.pace, false);
    let workers = shares.into_iter().map(|share| {
        let asked = &asked;
        move || work(load, asked, schedule, share)
    });
    conduct(&schedule, duration, workers.collect(), events)
}

fn patience(load: &HttpLoad) -> Duration {
    Duration::try_from_secs_f64(load.timeout_seconds).unwrap_or(Duration::from_secs(10))
}

/// The request.
struct Asked {
    head: Request<()>,
    /// The message of a gRPC call.
    message: Option<Bytes>,
}

impl Asked {
    fn new(load: &HttpLoad) -> Result<Self, Error> {
        let is_grpc = load.protocol == Protocol::Grpc;
        let path = if is_grpc { grpc::PATH } else { &load.path };
        let wrong = |error: http::Error| Error::Usage(format!("this is no request: {error}"));
        let mut head = Request::builder()
            .method(if is_grpc { Method::POST } else { Method::GET })
            .version(Version::HTTP_2)
            .uri(format!("http://{}{path}", load.target));
        if is_grpc {
            head = head.header("content-type", grpc::CONTENT_TYPE).header("te", "trailers");
        }
        for (name, value) in &load.headers {
            let name = HeaderName::try_from(name.to_ascii_lowercase()).map_err(|error| wrong(error.into()))?;
            head = head.header(name, HeaderValue::try_from(value).map_err(|error| wrong(error.into()))?);
        }
        let size = size_in(&load.path).unwrap_or(0) as u64;
        let message = is_grpc.then(|| grpc::frame(&FetchRequest { size }));
        Ok(Self { head: head.body(()).map_err(wrong)?, message })
    }
}

/// A connection, shared by its lanes.
struct Connection {
    sender: RefCell<Option<SendRequest<Bytes>>>,
    opening: tokio::sync::Mutex<()>,
}

struct Lane {
    number: usize,
    connection: Rc<Connection>,
    /// When the requests were due that wait for their turn.
    waiting: RefCell<VecDeque<Instant>>,
    wake: Notify,
    /// The start of the request that is not answered yet.
    current: Cell<Option<Instant>>,
}

/// What all lanes of a worker share.
struct Worker<'a> {
    load: &'a HttpLoad,
    asked: &'a Asked,
    schedule: Schedule,
    tally: RefCell<Tally>,
    over: Cell<bool>,
    lanes: Vec<Lane>,
}

fn work(
    load: &HttpLoad,
    asked: &Asked,
    schedule: Schedule,
    share: Vec<(usize, Option<TcpStream>)>,
) -> Result<Tally, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("cannot start a runtime"))?;
    LocalSet::new().block_on(&runtime, async {
        let ticks = Ticks::new().map_err(Error::io("cannot create a timer"))?;
        let mut lanes = Vec::new();
        for (number, stream) in share {
            let sender = match stream {
                Some(stream) => Some(open(adopt(stream)?).await.map_err(|reason| Error::Load {
                    step: load.target.to_string(),
                    reason: format!("connection {number}: {reason}"),
                })?),
                None => None,
            };
            let connection = Rc::new(Connection { sender: RefCell::new(sender), opening: tokio::sync::Mutex::new(()) });
            lanes.extend((0..load.streams).map(|stream| Lane {
                number: stream * load.connections + number,
                connection: connection.clone(),
                waiting: RefCell::default(),
                wake: Notify::new(),
                current: Cell::new(None),
            }));
        }
        lanes.sort_by_key(|lane| lane.number);
        let tally = match load.pace {
            Pace::Closed => Tally::default(),
            Pace::Open { per_second } => {
                let seconds = (schedule.end - schedule.begin).as_secs_f64();
                let share = lanes.len() as f64 / (load.connections * load.streams) as f64;
                Tally::of_open_loop((per_second * seconds * share).ceil() as usize + lanes.len())
            }
        };
        let worker = Worker { load, asked, schedule, tally: RefCell::new(tally), over: Cell::new(false), lanes };
        worker.run(&ticks).await?;
        Ok(worker.tally.into_inner())
    })
}

fn adopt(stream: TcpStream) -> Result<tokio::net::TcpStream, Error> {
    let adopted = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_nonblocking(true))
        .and_then(|()| tokio::net::TcpStream::from_std(stream));
    adopted.map_err(Error::io("cannot use a connection"))
}

/// Begins to speak HTTP/2.
async fn open(stream: tokio::net::TcpStream) -> Result<SendRequest<Bytes>, String> {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW).enable_push(false);
    let (sender, driver) = builder.handshake(stream).await.map_err(|error| said(&error))?;
    // It ends with the last handle. Requests are told of its errors.
    tokio::task::spawn_local(async move { drop(driver.await) });
    Ok(sender)
}

fn said(error: &h2::Error) -> String {
    match (error.get_io(), error.reason()) {
        (Some(error), _) => format!("connection: {}", error.kind()),
        (_, Some(reason)) if error.is_remote() => format!("HTTP/2: the server said {reason}"),
        (_, Some(reason)) => format!("HTTP/2: {reason}"),
        _ => format!("HTTP/2: {error}"),
    }
}

impl Worker<'_> {
    async fn run(&self, ticks: &Ticks) -> Result<(), Error> {
        let lanes = futures_util::future::join_all(self.lanes.iter().map(|lane| self.serve(lane)));
        let deadline = self.schedule.end + patience(self.load);
        let finished = async {
            let (told, _) = tokio::join!(self.tell_when_due(ticks), lanes);
            told
        };
        if !self.schedule.is_open() {
            // What is under way at the end does not count.
            tokio::select! {
                told = finished => return told,
                () = tokio::time::sleep_until(self.schedule.end.into()) => return Ok(()),
            }
        }
        let told = tokio::time::timeout_at(deadline.into(), finished).await.unwrap_or(Ok(()));
        self.abandon();
        told
    }

    /// Gives each lane its requests when they are due.
    async fn tell_when_due(&self, ticks: &Ticks) -> Result<(), Error> {
        let mut turn = 0;
        'all: while self.schedule.is_open() {
            for lane in &self.lanes {
                let Some(due) = self.schedule.due(lane.number, turn).filter(|due| *due < self.schedule.end) else {
                    break 'all;
                };
                ticks.until(due).await.map_err(Error::io("cannot set a timer"))?;
                if self.schedule.counts(due) {
                    let mut tally = self.tally.borrow_mut();
                    tally.planned += 1;
                    if lane.current.get().is_none() && lane.waiting.borrow().is_empty() {
                        tally.lag.record(due.elapsed());
                    }
                }
                lane.waiting.borrow_mut().push_back(due);
                lane.wake.notify_one();
            }
            turn += 1;
        }
        self.over.set(true);
        self.lanes.iter().for_each(|lane| lane.wake.notify_one());
        Ok(())
    }

    /// The start of a lane's next request. `None` when there will be no more.
    async fn next(&self, lane: &Lane) -> Option<Instant> {
        if !self.schedule.is_open() {
            return Some(Instant::now()).filter(|now| *now < self.schedule.end);
        }
        loop {
            if let Some(due) = lane.waiting.borrow_mut().pop_front() {
                return Some(due);
            }
            if self.over.get() {
                return None;
            }
            lane.wake.notified().await;
        }
    }

    async fn serve(&self, lane: &Lane) {
        while let Some(start) = self.next(lane).await {
            lane.current.set(Some(start));
            let outcome = tokio::time::timeout(patience(self.load), self.exchange(lane)).await;
            lane.current.set(None);
            let Some(failure) = self.note(start, outcome.ok()) else { continue };
            // An answer with another status is no reason to give the connection up.
            if !failure.starts_with("status ") && !failure.starts_with("gRPC") {
                lane.connection.sender.replace(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Counts a request: its body's length, or why there is none. `None` if it took too long. Returns the failure.
    fn note(&self, start: Instant, outcome: Option<Result<u64, String>>) -> Option<String> {
        let now = Instant::now();
        // A closed loop has no plan: a request counts if it ends within the time.
        let counts = self.schedule.counts(if self.schedule.is_open() { start } else { now });
        let mut tally = self.tally.borrow_mut();
        let failure = match outcome {
            Some(Ok(bytes)) => {
                if self.schedule.counts(now) {
                    tally.body_bytes += bytes;
                    tally.answered_in_time += 1;
                }
                if counts {
                    tally.answered += 1;
                    tally.record(start, now);
                }
                return None;
            }
            Some(Err(reason)) => reason,
            None => {
                // Without these, the slowest requests would be missing from the percentiles.
                if counts {
                    tally.record(start, now);
                }
                "timeout".to_owned()
            }
        };
        if counts {
            tally.error(&failure);
        }
        Some(failure)
    }

    /// The connection for a lane's next request.
    async fn sender(&self, lane: &Lane) -> Result<SendRequest<Bytes>, String> {
        let kept = || lane.connection.sender.borrow().clone();
        if self.load.reuse == Reuse::PerRequest {
            return self.connect().await;
        }
        if let Some(sender) = kept() {
            return Ok(sender);
        }
        let _one_at_a_time = lane.connection.opening.lock().await;
        if let Some(sender) = kept() {
            return Ok(sender);
        }
        let sender = self.connect().await?;
        lane.connection.sender.replace(Some(sender.clone()));
        Ok(sender)
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, String> {
        let failed = |error: std::io::Error| format!("connect: {}", error.kind());
        let stream = tokio::net::TcpStream::connect(self.load.target).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if self.schedule.counts(Instant::now()) {
            self.tally.borrow_mut().opened += 1;
        }
        open(stream).await
    }

    /// One request and its whole answer: the length of its body.
    async fn exchange(&self, lane: &Lane) -> Result<u64, String> {
        let sender = self.sender(lane).await?;
        let mut sender = sender.ready().await.map_err(|error| said(&error))?;
        let message = self.asked.message.clone();
        let sent = sender.send_request(self.asked.head.clone(), message.is_none());
        let (response, mut stream) = sent.map_err(|error| said(&error))?;
        let is_grpc = message.is_some();
        if let Some(message) = message {
            stream.send_data(message, true).map_err(|error| said(&error))?;
        }
        let (head, mut body) = response.await.map_err(|error| said(&error))?.into_parts();
        let mut length = 0;
        let mut gathered = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(|error| said(&error))?;
            length += chunk.len() as u64;
            if is_grpc {
                gathered.extend_from_slice(&chunk);
            }
            body.flow_control().release_capacity(chunk.len()).map_err(|error| said(&error))?;
        }
        if head.status != http::StatusCode::OK {
            return Err(format!("status {}", head.status.as_u16()));
        }
        if !is_grpc {
            return Ok(length);
        }
        let trailers = body.trailers().await.map_err(|error| said(&error))?;
        let status = trailers.as_ref().unwrap_or(&head.headers).get(grpc::STATUS).map(HeaderValue::as_bytes);
        match status {
            Some(b"0") => {}
            Some(status) => return Err(format!("gRPC status {}", String::from_utf8_lossy(status))),
            None => return Err("gRPC: no status".to_owned()),
        }
        let answer: FetchResponse = grpc::unframe(gathered.freeze())?;
        Ok(answer.body.len() as u64)
    }

    /// Counts requests without an answer: as an error, and as a latency of at least their age.
    fn abandon(&self) {
        let now = Instant::now();
        let mut tally = self.tally.borrow_mut();
        for lane in &self.lanes {
            let waiting = lane.waiting.borrow();
            let left = lane.current.get().into_iter().chain(waiting.iter().copied());
            for start in left.filter(|start| self.schedule.counts(*start)) {
                tally.error("no answer when the load ended");
                tally.record(start, now);
            }
        }
    }
}
