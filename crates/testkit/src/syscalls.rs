//! Counts of system calls: the cost of a message, a byte or a connection without a clock, so that a busy machine gives
//! the same answer as an idle one.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Counts events in this process's threads of one name, from its creation on, by a trace point of the kernel.
#[derive(Debug)]
pub struct SyscallCounter {
    threads: Vec<fs::File>,
}

impl SyscallCounter {
    /// Counts the system calls of all threads whose name begins with `name`.
    ///
    /// # Errors
    /// If the kernel has no such trace point or doesn't let this process use it, which takes root.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::of("raw_syscalls/sys_enter", name, None)
    }

    /// As [`SyscallCounter::new`], without those that [`SyscallCounter::of_wakes`] counts.
    ///
    /// # Errors
    /// As [`SyscallCounter::new`].
    pub fn without_wakes(name: &str) -> io::Result<Self> {
        Self::of("raw_syscalls/sys_enter", name, Some(format!("id != {}", libc::SYS_futex)))
    }

    /// Counts what such threads ask of futexes: other threads are woken, or waited for. Whether that takes a system call
    /// depends on whether the other one sleeps, or holds a lock at that moment.
    ///
    /// # Errors
    /// As [`SyscallCounter::new`].
    pub fn of_wakes(name: &str) -> io::Result<Self> {
        Self::of("raw_syscalls/sys_enter", name, Some(format!("id == {}", libc::SYS_futex)))
    }

    /// Counts the waits with a time limit of such threads, by the kernel timers that they start. The kernel's own timers are
    /// not counted: there are more of them the longer a test takes.
    ///
    /// # Errors
    /// As [`SyscallCounter::new`].
    pub fn of_limited_waits(name: &str) -> io::Result<Self> {
        Self::of("timer/hrtimer_start", name, Some(format!("function == {:#x}", kernel_function("hrtimer_wakeup")?)))
    }

    fn of(event: &str, name: &str, filter: Option<String>) -> io::Result<Self> {
        let id = trace_point(event)?;
        let mut threads = Vec::new();
        for entry in fs::read_dir("/proc/self/task")? {
            let path = entry?.path();
            // A thread may end meanwhile.
            let Ok(comm) = fs::read_to_string(path.join("comm")) else { continue };
            if comm.starts_with(name) {
                let thread = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
                let counter = open(id, thread)?;
                if let Some(filter) = &filter {
                    count_only(&counter, filter)?;
                }
                threads.push(counter);
            }
        }
        Ok(Self { threads })
    }

    /// The count so far.
    pub fn count(&mut self) -> u64 {
        let mut sum = 0;
        for thread in &mut self.threads {
            let mut count = [0; 8];
            thread.read_exact(&mut count).unwrap();
            sum += u64::from_ne_bytes(count);
        }
        sum
    }

    /// Threads that are counted.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

/// The number of a trace point, from the kernel's own list. Where that file system is not mounted, it is mounted in the
/// mount namespace of a thread that ends, so that nothing remains.
fn trace_point(event: &str) -> io::Result<u64> {
    const LIST: &str = "/sys/kernel/tracing";
    let read = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        match mount(Some("tracefs"), LIST, Some("tracefs"), MsFlags::empty(), None::<&str>) {
            // It is mounted there already.
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(error) => return Err(error.into()),
        }
        fs::read_to_string(format!("{LIST}/events/{event}/id"))
    };
    let id = thread::scope(|scope| scope.spawn(read).join()).unwrap();
    id?.trim().parse().map_err(io::Error::other)
}

/// The first version of the kernel's `perf_event_attr`, which is all that is needed here.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    config1: u64,
}

#[allow(unsafe_code)]
fn open(id: u64, thread: i32) -> io::Result<fs::File> {
    const PERF_TYPE_TRACEPOINT: u32 = 2;
    const ANY_CPU: i32 = -1;
    const NO_GROUP: i32 = -1;
    const CLOEXEC: u64 = 1 << 3;
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: id,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads `size` bytes of the structure, which is that large and lives until
    // the call is over, and gives back a new descriptor or -1.
    let fd = unsafe {
        let raw = libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attributes),
            thread,
            ANY_CPU,
            NO_GROUP,
            CLOEXEC,
        );
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw as i32)
    };
    Ok(fd.into())
}

/// Where the kernel has a function, for filters of trace points that tell which one is called.
fn kernel_function(name: &str) -> io::Result<u64> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let found = symbols.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (address, _, symbol) = (words.next()?, words.next()?, words.next()?);
        (symbol == name).then(|| u64::from_str_radix(address, 16))
    });
    match found {
        Some(Ok(address)) if address > 0 => Ok(address),
        // It shows zeros to those who may not know.
        Some(Ok(_)) => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Err(io::Error::other(format!("the kernel has no function {name}"))),
    }
}

/// Counts from now on only events that a filter lets through.
#[allow(unsafe_code)]
fn count_only(counter: &fs::File, filter: &str) -> io::Result<()> {
    // The same on all architectures that Leno is built for (`_IOW('$', 6, char *)`).
    const PERF_EVENT_IOC_SET_FILTER: libc::Ioctl = 0x4008_2406;
    let filter = CString::new(filter)?;
    // SAFETY: the kernel reads a string that ends with a zero byte, and lives until the call is over.
    let set = unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER, filter.as_ptr()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
