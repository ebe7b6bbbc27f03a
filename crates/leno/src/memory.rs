//! What the process gives back: what its allocator has been left with, and code.

use std::ops::Range;

// The system's allocator keeps what a burst of connections needed; this one gives it back when
// asked to, and is as good on musl as on glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the kernel back what the calling thread has freed, and the code that is not in use.
pub(crate) fn trim() {
    collect();
    unmap_code();
}

#[allow(unsafe_code, reason = "the only way to ask the allocator for anything")]
fn collect() {
    // mimalloc.h, and linked with the allocator above.
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: `void mi_collect(bool)` may be called at any time by any thread, which must not be
    // inside the allocator: this one is here. It frees no block that is in use.
    unsafe { mi_collect(true) }
}

/// Most of the code that ever ran was for starting, and the kernel maps sixteen pages around each
/// that is asked for. What is needed comes back from the page cache at a microsecond per sixteen.
#[allow(unsafe_code, reason = "no library unmaps a program's own code")]
fn unmap_code() {
    let Some(code) = program_code() else { return };
    // SAFETY: the range is a private mapping of the program's file that is executable and can't be
    // written, and which holds nothing the linker would have had to relocate (it has no text
    // relocations), so each of its pages is the file's; a thread that runs or reads there faults
    // the same bytes in again. Failing changes nothing.
    unsafe {
        libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED);
    }
}

fn program_code() -> Option<Range<usize>> {
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    code_in(&std::fs::read_to_string("/proc/self/maps").ok()?, program.to_str()?)
}

/// Where `program`'s code is, by the lines of `/proc/PID/maps` (proc_pid_maps(5)).
fn code_in(maps: &str, program: &str) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        if !rest.starts_with("r-xp ") || !rest.ends_with(&format!(" {program}")) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    })
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
