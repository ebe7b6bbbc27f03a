//! A link that loses, delays, doubles and swallows frames, as bad networks do.
//!
//! It stands between a bridge and one of its ports: the port moves to a bridge of its own, and frames go from one to the other through
//! two TAP interfaces. The kernel hands over each packet as it would be on a wire: what it had put together for speed (segmentation
//! offload) is cut by the MTU, and has its checksums. So one lost frame is one lost segment, which a drop rule on a `veth` can't do.

#![allow(clippy::unwrap_used, reason = "test code: a link that can't be built shall stop the test")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_capture::links;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use parking_lot::Mutex;

/// The bridge that the port moves to.
const BEYOND: &str = "beyond0";
/// The TAP interfaces: at the bridge and at the port.
const TAPS: [&str; 2] = ["impaired0", "impaired1"];
/// Room for any frame, bytes.
const FRAME_BYTES: usize = 64 * 1024;
/// An Ethernet header, bytes. What follows it is the IP packet.
const HEADER_BYTES: usize = 14;

/// What one direction of a link does to frames. By default nothing.
#[derive(Debug, Clone)]
pub struct Impairment {
    /// How many of a hundred frames are lost.
    pub lost_percent: u64,
    /// How many of a hundred frames come twice.
    pub doubled_percent: u64,
    /// How long a frame takes; each takes another time, so that frames overtake one another.
    pub delay: Range<Duration>,
    /// The largest IP packet that passes, bytes. Larger ones vanish, and nobody is told.
    pub largest_packet_bytes: usize,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            lost_percent: 0,
            doubled_percent: 0,
            delay: Duration::ZERO..Duration::ZERO,
            largest_packet_bytes: usize::MAX,
        }
    }
}

/// What became of the frames of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Frames that arrived.
    pub carried: u64,
    /// Frames that were lost by chance.
    pub lost: u64,
    /// Frames that came twice.
    pub doubled: u64,
    /// Frames that arrived after one that had been sent later.
    pub overtaken: u64,
    /// Frames that were too large.
    pub too_large: u64,
    /// The largest IP packet that arrived, bytes.
    pub largest_packet_bytes: usize,
}

/// A direction, as the port's owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the port.
    In,
    /// From the port.
    Out,
}

/// The link. The port is cut off when this is dropped.
#[derive(Debug)]
pub struct ImpairedLink {
    ways: Arc<[Way; 2]>,
    /// Closing it wakes and ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Way {
    impairment: Mutex<Impairment>,
    tally: Mutex<Tally>,
}

impl ImpairedLink {
    /// Puts the link before a port of a bridge. Until it is told otherwise, it impairs nothing.
    pub fn before_port(namespace: &NetworkNamespace, bridge: &str, port: &str) -> Self {
        let ends = TAPS.map(|name| namespace.run(|| tap(name)).unwrap().unwrap());
        links::create_bridge(namespace, BEYOND).unwrap();
        links::set_up(namespace, BEYOND).unwrap();
        for (tap, master) in TAPS.into_iter().zip([bridge, BEYOND]) {
            links::set_master(namespace, tap, master).unwrap();
            links::set_up(namespace, tap).unwrap();
        }
        links::set_master(namespace, port, BEYOND).unwrap();

        let ways = Arc::<[Way; 2]>::default();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let carrying = Carrying { ends, ways: ways.clone(), under_way: BinaryHeap::new(), dice: Dice(1), number: 0 };
        let thread = std::thread::Builder::new().name("impaired-link".into()).spawn(move || carrying.run(&stopped));
        Self { ways, stop: Some(stop), thread: Some(thread.unwrap()) }
    }

    /// From now on, frames of one direction are treated so.
    pub fn impair(&self, direction: Direction, impairment: Impairment) {
        *self.way(direction).impairment.lock() = impairment;
    }

    /// From now on, frames of both directions are treated so.
    pub fn impair_both(&self, impairment: &Impairment) {
        for direction in [Direction::In, Direction::Out] {
            self.impair(direction, impairment.clone());
        }
    }

    /// From now on, frames pass as they come.
    pub fn mend(&self) {
        self.impair_both(&Impairment::default());
    }

    /// What has become of frames since the last call.
    pub fn tally(&self, direction: Direction) -> Tally {
        std::mem::take(&mut *self.way(direction).tally.lock())
    }

    fn way(&self, direction: Direction) -> &Way {
        &self.ways[direction as usize]
    }
}

impl Drop for ImpairedLink {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        // A link that ended early would look like one that loses everything.
        if !std::thread::panicking() {
            ended.unwrap().unwrap().unwrap();
        }
    }
}

/// A frame on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    due: Instant,
    number: u64,
    way: usize,
    bytes: Vec<u8>,
}

struct Carrying {
    ends: [File; 2],
    ways: Arc<[Way; 2]>,
    under_way: BinaryHeap<Reverse<Frame>>,
    dice: Dice,
    /// Of the last frame that was read.
    number: u64,
}

impl Carrying {
    fn run(mut self, stopped: &UnixStream) -> io::Result<()> {
        let mut buffer = vec![0; FRAME_BYTES];
        let mut newest = [0; 2];
        loop {
            let due = self.under_way.peek().map(|Reverse(frame)| frame.due);
            let wait = due.map(|due| TimeSpec::from_duration(due.saturating_duration_since(Instant::now())));
            let mut events = [self.ends[0].as_fd(), self.ends[1].as_fd(), stopped.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match ppoll(&mut events, wait, None) {
                Ok(_) if events[2].any().unwrap_or(true) => return Ok(()),
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }

            for way in 0..2 {
                self.take(way, &mut buffer)?;
            }
            self.deliver(&mut newest)?;
        }
    }

    /// Reads what has come by one direction and decides what becomes of it.
    fn take(&mut self, way: usize, buffer: &mut [u8]) -> io::Result<()> {
        let impairment = self.ways[way].impairment.lock().clone();
        loop {
            let length = match (&self.ends[way]).read(buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut tally = self.ways[way].tally.lock();
            if length - HEADER_BYTES > impairment.largest_packet_bytes {
                tally.too_large += 1;
                continue;
            }
            if self.dice.falls(impairment.lost_percent) {
                tally.lost += 1;
                continue;
            }
            let doubled = self.dice.falls(impairment.doubled_percent);
            tally.doubled += u64::from(doubled);
            drop(tally);

            let (now, range) = (Instant::now(), &impairment.delay);
            for _ in 0..=u8::from(doubled) {
                self.number += 1;
                let spread = (range.end - range.start).as_micros() as u64;
                let due = now + range.start + Duration::from_micros(self.dice.below(spread + 1));
                let bytes = buffer[..length].to_vec();
                self.under_way.push(Reverse(Frame { due, number: self.number, way, bytes }));
            }
        }
    }

    /// Passes on what is due. `newest` has the latest frame of each direction that has arrived.
    fn deliver(&mut self, newest: &mut [u64; 2]) -> io::Result<()> {
        let now = Instant::now();
        while self.under_way.peek().is_some_and(|Reverse(frame)| frame.due <= now) {
            let Some(Reverse(Frame { number, way, bytes, .. })) = self.under_way.pop() else { break };
            (&self.ends[1 - way]).write_all(&bytes)?;
            let mut tally = self.ways[way].tally.lock();
            tally.carried += 1;
            tally.overtaken += u64::from(number < newest[way]);
            tally.largest_packet_bytes = tally.largest_packet_bytes.max(bytes.len() - HEADER_BYTES);
            newest[way] = number.max(newest[way]);
        }
        Ok(())
    }
}

/// The same numbers in every run (xorshift64*), though what they meet is another frame each time.
struct Dice(u64);

impl Dice {
    fn falls(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // The high bits are the good ones.
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % end
    }
}

/// `struct ifreq` (netdevice(7)): of its union, only the flags are used.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// A new interface of the calling thread's network namespace. It lives as long as the file: what is sent to it is read there, one frame
/// at a time.
#[allow(unsafe_code, reason = "no safe wrapper")]
fn tap(name: &str) -> io::Result<File> {
    // `_IOW('T', 202, int)` (linux/if_tun.h), the same on all architectures that Leno is built for.
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI;
    let mut request = InterfaceRequest { name: [0; 16], flags: flags as libc::c_short, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq`, which is as large as this structure on 64-bit systems. It lives until the
    // call is over, and so does the open file.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if made < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
