//! HTTP requests at a pace. Each worker is a thread with its own epoll, and nothing is shared while requests run. A
//! timer of nanosecond resolution starts them, because an async runtime's timers tick in milliseconds, ten times the
//! latency that is measured here.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::conduct::{check, conduct};
use super::message::Progress;
use super::pace::Schedule;
use super::slot::{Phase, Slot, connect};
use super::spec::{Event, HttpLoad, HttpOutcome, Pace, Reuse};
use super::tally::Tally;
use crate::Error;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// The pause between checks for requests that take too long.
const LOOK: Duration = Duration::from_millis(250);
/// The pause before a failed connection is opened again. A target that refuses connections must not be flooded.
const PAUSE: Duration = Duration::from_millis(10);
const BUFFER: usize = 256 * 1024;
const TIMER: u64 = u64::MAX;

/// Runs the load and reports to `events` when the measured time begins and ends.
///
/// # Errors
/// When a kept connection can't be opened at the start, or the kernel has no epoll or timer to spare.
pub(super) fn run(
    load: &HttpLoad,
    warmup: Duration,
    duration: Duration,
    events: &mut dyn FnMut(Event),
) -> Result<HttpOutcome, Error> {
    check(load)?;
    if load.streams != 1 {
        return Err(Error::Usage("HTTP/1.1 has one request at a time on a connection".to_owned()));
    }
    if load.walk.as_ref().is_some_and(|walk| walk.stops.is_empty()) {
        return Err(Error::Usage("a walk needs at least one request".to_owned()));
    }
    let workers = load.workers.clamp(1, load.connections);
    let mut shares: Vec<Vec<Slot>> = (0..workers).map(|_| Vec::new()).collect();
    for connection in 0..load.connections {
        shares[connection % workers].push(Slot::open(connection, load)?);
    }
    let lockstep = load.walk.as_ref().is_some_and(|walk| walk.lockstep);
    let schedule = Schedule::new(Instant::now(), warmup, duration, load.connections, load.pace, lockstep);
    let workers = shares.into_iter().map(|slots| move || Worker::new(load, schedule, slots).and_then(Worker::run));
    conduct(&schedule, duration, workers.collect(), events)
}

/// The requests as they are sent.
fn requests(load: &HttpLoad) -> Vec<Vec<u8>> {
    let mut fields: String = load.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    if load.reuse == Reuse::PerRequest {
        fields.push_str("Connection: close\r\n");
    }
    let request = |host: &str, path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").into_bytes();
    match &load.walk {
        Some(walk) => walk.stops.iter().map(|stop| request(&stop.host, &stop.path)).collect(),
        None => vec![request(&load.target.to_string(), &load.path)],
    }
}

struct Worker<'a> {
    load: &'a HttpLoad,
    /// The requests of a walk, or the only one.
    requests: Vec<Vec<u8>>,
    schedule: Schedule,
    slots: Vec<Slot>,
    epoll: Epoll,
    timer: TimerFd,
    /// The next request that is not yet due: turn, and index into `slots`.
    next: (u64, usize),
    pausing: VecDeque<(Instant, usize)>,
    looked: Instant,
    /// The time that the timer is set to.
    armed: Option<Instant>,
    tally: Tally,
}

impl<'a> Worker<'a> {
    fn new(load: &'a HttpLoad, schedule: Schedule, slots: Vec<Slot>) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::errno("cannot create an epoll"))?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
            .map_err(Error::errno("cannot create a timer"))?;
        epoll
            .add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))
            .map_err(Error::errno("cannot watch a timer"))?;
        let tally = match load.pace {
            Pace::Closed => Tally::default(),
            Pace::Open { per_second } => {
                let seconds = (schedule.end - schedule.begin).as_secs_f64();
                let share = slots.len() as f64 / load.connections as f64;
                Tally::of_open_loop((per_second * seconds * share).ceil() as usize + slots.len())
            }
        };
        let worker = Self {
            load,
            requests: requests(load),
            schedule,
            slots,
            epoll,
            timer,
            next: (0, 0),
            pausing: VecDeque::new(),
            looked: Instant::now(),
            armed: None,
            tally,
        };
        for (index, slot) in worker.slots.iter().enumerate() {
            if let Some(stream) = &slot.stream {
                worker.watch(stream, index).map_err(Error::io("cannot watch a connection"))?;
            }
        }
        Ok(worker)
    }

    fn watch(&self, stream: &TcpStream, index: usize) -> io::Result<()> {
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        Ok(self.epoll.add(stream.as_fd(), EpollEvent::new(interest, index as u64))?)
    }

    fn run(mut self) -> Result<Tally, Error> {
        let mut buffer = vec![0; BUFFER];
        let mut events = [EpollEvent::empty(); 256];
        if !self.schedule.is_open() {
            for index in 0..self.slots.len() {
                self.begin(index, Instant::now());
            }
        }
        let patience = Duration::try_from_secs_f64(self.load.timeout_seconds).unwrap_or(Duration::from_secs(10));
        let deadline = self.schedule.end + if self.schedule.is_open() { patience } else { Duration::ZERO };
        loop {
            let now = Instant::now();
            self.start_due(now);
            self.resume(now);
            self.give_up_late(now, patience);
            if now >= deadline || (now >= self.schedule.end && self.is_drained()) {
                break;
            }
            self.arm(now, deadline)?;
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(error) => return Err(Error::errno("waiting for connections")(error)),
            };
            for event in &events[..count] {
                if event.data() != TIMER {
                    let ends = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
                    self.serve(event.data() as usize, event.events().intersects(ends), &mut buffer);
                }
            }
        }
        self.abandon();
        Ok(self.tally)
    }

    /// Begins all requests that are due.
    fn start_due(&mut self, now: Instant) {
        loop {
            let (turn, index) = self.next;
            let Some(due) = self.schedule.due(self.slots[index].number, turn) else { return };
            if due > now || due >= self.schedule.end {
                return;
            }
            self.next = if index + 1 < self.slots.len() { (turn, index + 1) } else { (turn + 1, 0) };
            if self.schedule.counts(due) {
                self.tally.planned += 1;
            }
            self.slots[index].due += 1;
            if self.slots[index].phase == Phase::Idle {
                if self.schedule.counts(due) {
                    self.tally.lag.record(now.saturating_duration_since(due));
                }
                self.take_turn(index, now);
            }
        }
    }

    /// Begins the slot's next request if one is due, or at once in a closed loop.
    fn take_turn(&mut self, index: usize, now: Instant) {
        let slot = &mut self.slots[index];
        let start = match self.schedule.due(slot.number, slot.turn) {
            None if now >= self.schedule.end => return,
            None => now,
            Some(_) if slot.due == 0 => return,
            Some(due) => {
                slot.due -= 1;
                due
            }
        };
        slot.turn += 1;
        self.begin(index, start);
    }

    fn begin(&mut self, index: usize, start: Instant) {
        let slot = &mut self.slots[index];
        (slot.start, slot.begun, slot.sent) = (start, Instant::now(), 0);
        slot.reader.reset();
        slot.go_on(self.load);
        if slot.stream.is_some() {
            slot.phase = Phase::Sending;
            return self.send(index);
        }
        slot.phase = Phase::Connecting;
        match connect(slot.target).and_then(|stream| self.watch(&stream, index).map(|()| stream)) {
            Ok(stream) => self.slots[index].stream = Some(stream),
            Err(error) => self.fail(index, &format!("connect: {}", error.kind())),
        }
    }

    fn send(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(stream) = &mut slot.stream else { return };
        let request = &self.requests[slot.stop];
        while slot.sent < request.len() {
            match stream.write(&request[slot.sent..]) {
                Ok(written) => slot.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(index, &format!("send: {}", error.kind())),
            }
        }
        slot.phase = Phase::Receiving;
    }

    /// Does what a connection's new state allows. `ended` means that no more bytes will come.
    fn serve(&mut self, index: usize, ended: bool, buffer: &mut [u8]) {
        if self.slots[index].phase == Phase::Connecting {
            let Some(stream) = &self.slots[index].stream else { return };
            match stream.take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return self.fail(index, &format!("connect: {}", error.kind())),
            }
            if stream.peer_addr().is_err() {
                return;
            }
            if self.schedule.counts_for(self.slots[index].start, Instant::now()) {
                self.tally.opened += 1;
            }
            self.slots[index].phase = Phase::Sending;
            self.send(index);
            return;
        }
        if self.slots[index].phase == Phase::Sending {
            self.send(index);
        }
        self.receive(index, ended, buffer);
    }

    fn receive(&mut self, index: usize, ended: bool, buffer: &mut [u8]) {
        loop {
            let slot = &mut self.slots[index];
            let Some(stream) = &mut slot.stream else { return };
            let count = match stream.read(buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The request was answered. How the server closes afterwards is not its failure.
                Err(_) if slot.phase == Phase::Closing => 0,
                Err(error) => return self.fail(index, &format!("receive: {}", error.kind())),
            };
            match (slot.phase, count) {
                (Phase::Closing, 0) => {
                    slot.stream = None;
                    slot.phase = Phase::Idle;
                    return self.take_turn(index, Instant::now());
                }
                (Phase::Idle, 0) => return self.lose(index),
                (_, 0) if slot.reader.has_begun() => return self.fail(index, "receive: closed in mid-answer"),
                (_, 0) => return self.fail(index, "receive: closed without an answer"),
                (Phase::Closing | Phase::Idle, _) => return self.fail(index, "receive: bytes after the answer"),
                _ => {}
            }
            match slot.reader.feed(&buffer[..count]) {
                Ok(Progress::More) => {}
                Ok(Progress::Done) => {
                    self.answered(index, ended);
                    if self.slots[index].phase != Phase::Closing {
                        return;
                    }
                }
                Err(reason) => return self.fail(index, &format!("receive: {reason}")),
            }
            // A short read has emptied the socket. Later bytes make a new event. An end that has already come makes
            // none.
            if count < buffer.len() && !ended && self.slots[index].phase != Phase::Closing {
                return;
            }
        }
    }

    fn answered(&mut self, index: usize, ended: bool) {
        let now = Instant::now();
        let slot = &mut self.slots[index];
        let status = slot.reader.status();
        let counts = self.schedule.counts_for(slot.start, now);
        if self.schedule.counts(now) {
            self.tally.body_bytes += slot.reader.body();
            self.tally.answered_in_time += u64::from(status == 200);
        }
        if counts && status == 200 {
            self.tally.answered += 1;
            self.tally.record(slot.start, now);
        } else if counts {
            self.tally.error(&format!("status {status}"));
        }
        if slot.reader.closes() {
            slot.phase = Phase::Closing;
            return;
        }
        if ended || self.load.reuse == Reuse::PerRequest {
            slot.stream = None;
        }
        slot.phase = Phase::Idle;
        self.take_turn(index, now);
    }

    /// A kept connection was closed between two requests. The next request opens another.
    fn lose(&mut self, index: usize) {
        self.slots[index].stream = None;
    }

    fn fail(&mut self, index: usize, reason: &str) {
        let now = Instant::now();
        let slot = &mut self.slots[index];
        slot.stream = None;
        slot.phase = Phase::Pausing;
        self.pausing.push_back((now + PAUSE, index));
        if self.schedule.counts_for(slot.start, now) {
            self.tally.error(reason);
        }
    }

    /// Lets failed connections try again.
    fn resume(&mut self, now: Instant) {
        while let Some(&(when, index)) = self.pausing.front()
            && when <= now
        {
            self.pausing.pop_front();
            self.slots[index].phase = Phase::Idle;
            self.take_turn(index, now);
        }
    }

    fn give_up_late(&mut self, now: Instant, patience: Duration) {
        if now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.begun + patience > now {
                continue;
            }
            match slot.phase {
                Phase::Connecting | Phase::Sending | Phase::Receiving => {
                    // Without these, the slowest requests would be missing from the percentiles.
                    if self.schedule.counts_for(slot.start, now) {
                        self.tally.record(slot.start, now);
                    }
                    self.fail(index, "timeout");
                }
                Phase::Closing => {
                    slot.stream = None;
                    slot.phase = Phase::Idle;
                    self.take_turn(index, now);
                }
                Phase::Idle | Phase::Pausing => {}
            }
        }
    }

    /// Whether no request that counts is left.
    fn is_drained(&self) -> bool {
        !self.schedule.is_open()
            || self.slots.iter().all(|slot| slot.due == 0 && matches!(slot.phase, Phase::Idle | Phase::Closing))
    }

    fn arm(&mut self, now: Instant, deadline: Instant) -> Result<(), Error> {
        let (turn, index) = self.next;
        let due = self.schedule.due(self.slots[index].number, turn).filter(|due| *due < self.schedule.end);
        let resumed = self.pausing.front().map(|(when, _)| *when);
        let end = if now < self.schedule.end { self.schedule.end } else { deadline };
        let wake = [due, resumed, Some(self.looked + LOOK), Some(end)].into_iter().flatten().min().unwrap_or(end);
        // Usually the timer is already set to this time. The check saves a system call per request.
        if self.armed == Some(wake) && wake > now {
            return Ok(());
        }
        self.armed = Some(wake);
        // Zero would disarm the timer.
        let wait = wake.saturating_duration_since(now).max(Duration::from_nanos(1));
        self.timer
            .set(Expiration::OneShot(wait.into()), TimerSetTimeFlags::empty())
            .map_err(Error::errno("cannot set a timer"))
    }

    /// Counts a request without an answer: as an error, and as a latency of at least its age.
    fn abandon(&mut self) {
        if !self.schedule.is_open() {
            return;
        }
        let now = Instant::now();
        for slot in &self.slots {
            let unfinished = matches!(slot.phase, Phase::Connecting | Phase::Sending | Phase::Receiving);
            let begun = unfinished.then_some(slot.start);
            let waiting = (0..slot.due).filter_map(|more| self.schedule.due(slot.number, slot.turn + more));
            for start in begun.into_iter().chain(waiting).filter(|start| self.schedule.counts(*start)) {
                self.tally.error("no answer when the load ended");
                self.tally.record(start, now);
            }
        }
    }
}
