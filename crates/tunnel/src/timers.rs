//! The timers of connections, kept by another thread.
//!
//! A runtime that has a timer sets it in the kernel each time it goes to sleep, and cancels it when it wakes: twice for
//! each message, 6 % of the processor time of a request. So a thread that carries connections lets another thread keep
//! its timers.

#![expect(clippy::disallowed_methods, reason = "what is made here is kept by who keeps time")]

use std::cell::OnceCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, Timeout};

thread_local! {
    static KEEPER: OnceCell<Handle> = const { OnceCell::new() };
}

/// From now on, `keeper` keeps the timers that are made on this thread. It must outlive them: a timer whose runtime is
/// gone panics. Only the first call has an effect.
pub fn keep_on(keeper: &Handle) {
    KEEPER.with(|kept| {
        kept.get_or_init(|| keeper.clone());
    });
}

/// As [`tokio::time::sleep`]. Without a keeper, the current runtime keeps the timer.
pub fn sleep(duration: Duration) -> Sleep {
    kept(|| tokio::time::sleep(duration))
}

/// As [`tokio::time::sleep_until`]; see [`sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    kept(|| tokio::time::sleep_until(deadline))
}

/// As [`tokio::time::timeout`]; see [`sleep`].
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    kept(|| tokio::time::timeout(duration, future))
}

/// Runs `future` with its timers and tasks kept as those of [`sleep`]. For code that does not know this module and
/// would panic on a thread whose runtime keeps no time. It should open no sockets, because the keeper would have to
/// watch them.
pub async fn entered<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| kept(|| future.as_mut().poll(context))).await
}

/// A timer belongs to the runtime that is entered when it is made.
fn kept<T>(make: impl FnOnce() -> T) -> T {
    KEEPER.with(|keeper| {
        let _entered = keeper.get().map(Handle::enter);
        make()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_timers_are_kept_elsewhere_is_woken_by_them() {
        let keeper = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = keeper.handle().clone();
        let worker = std::thread::spawn(move || {
            keep_on(&handle);
            // It could keep none of its own.
            let worker = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            worker.block_on(async {
                sleep(Duration::from_millis(1)).await;
                sleep_until(Instant::now() + Duration::from_millis(1)).await;
                let mut timer = Box::pin(sleep(Duration::from_secs(3600)));
                timer.as_mut().reset(Instant::now() + Duration::from_millis(1));
                timer.await;
                entered(async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    // A task of the keeper's, so it may have timers too.
                    tokio::spawn(tokio::time::sleep(Duration::from_millis(1))).await
                })
                .await
                .unwrap();
                timeout(Duration::from_millis(1), std::future::pending::<()>()).await
            })
        });
        let ended = keeper.block_on(async { tokio::task::spawn_blocking(|| worker.join()).await });
        assert!(ended.unwrap().unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn other_threads_keep_their_own() {
        sleep(Duration::from_secs(3600)).await;
        assert!(timeout(Duration::from_secs(3600), std::future::pending::<()>()).await.is_err());
    }
}
