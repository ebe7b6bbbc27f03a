//! The allocator.

// The system's allocator keeps what a burst of connections needed; this one gives it back when
// asked to, and is as good on musl as on glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the kernel back what the calling thread has freed.
#[allow(unsafe_code, reason = "the only way to ask the allocator for anything")]
pub(crate) fn trim() {
    // mimalloc.h, and linked with the allocator above.
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: `void mi_collect(bool)` may be called at any time by any thread, which must not be
    // inside the allocator: this one is here. It frees no block that is in use.
    unsafe { mi_collect(true) }
}
