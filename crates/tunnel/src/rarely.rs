//! Waiting for a rare event beside frequent ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::waking::{Registered, Sleeper};

/// A future that is polled only when it was woken itself, not each time its task is woken for another reason. A
/// connection's task is woken for each message. Checking for changed policies, an ending proxy or a timer each time
/// would take locks.
pub struct Rarely<F> {
    future: F,
    asked: Asked,
}

/// See [`Rarely`].
pub fn rarely<F: Future>(future: F) -> Rarely<F> {
    Rarely { future, asked: Asked::new() }
}

impl<F: Future + Unpin> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let future = &mut this.future;
        this.asked.poll(cx, |cx| Pin::new(future).poll(cx))
    }
}

/// Polls something only when it was woken for it, or after it was ready.
pub(crate) struct Asked {
    signal: Arc<Signal>,
    /// With the signal's `task`.
    registered: Registered,
}

struct Signal {
    woken: AtomicBool,
    task: Sleeper,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // This is set before the task is woken, because the task may run on another thread before this function ends.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Asked {
    pub(crate) fn new() -> Self {
        let signal = Arc::new(Signal { woken: AtomicBool::new(true), task: Sleeper::default() });
        Self { signal, registered: Registered::default() }
    }

    /// Makes the next [`Asked::poll`] poll. The task is not woken for it.
    pub(crate) fn ask(&self) {
        self.signal.woken.store(true, Ordering::Relaxed);
    }

    /// Polls with `poll` if it was woken for it. If the result is ready, the next call polls again.
    pub(crate) fn poll<T>(&mut self, cx: &Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        // Registering comes first: the task that was registered before may just have been woken in place of this one.
        self.registered.renew(cx, &self.signal.task);
        // It is cleared before anything is checked. Otherwise a wake-up in between would be lost.
        if !self.signal.woken.load(Ordering::Relaxed) || !self.signal.woken.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let result = poll(&mut Context::from_waker(&Waker::from(self.signal.clone())));
        if result.is_ready() {
            self.ask();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    fn counted<T: Send + 'static>(
        mut told: oneshot::Receiver<T>,
        polls: &AtomicUsize,
    ) -> impl Future<Output = T> + Unpin + '_ {
        poll_fn(move |cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut told).poll(cx).map(Result::unwrap)
        })
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn times(woken: &Woken) -> usize {
        woken.0.load(Ordering::Relaxed)
    }

    #[test]
    fn polls_for_other_reasons_do_not_reach_it() {
        let (polls, woken) = (AtomicUsize::new(0), Arc::new(Woken::default()));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let (tell, told) = oneshot::channel();
        let mut waiting = pin!(rarely(counted(told, &polls)));
        for _ in 0..5 {
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!((polls.load(Ordering::Relaxed), times(&woken)), (1, 0));
        tell.send(7).unwrap();
        assert_eq!(times(&woken), 1);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(7));
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        let (polls, first, second) = (AtomicUsize::new(0), Arc::new(Woken::default()), Arc::new(Woken::default()));
        let (tell, told) = oneshot::channel();
        let mut waiting = pin!(rarely(counted(told, &polls)));
        for task in [&first, &second] {
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&Waker::from(task.clone()))).is_pending());
        }
        tell.send(()).unwrap();
        assert_eq!((times(&first), times(&second)), (0, 1));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_is_lost_between_threads() {
        for _ in 0..2_000 {
            let (tell, told) = oneshot::channel();
            let polls = AtomicUsize::new(0);
            let telling = tokio::spawn(async move { tell.send(()) });
            rarely(counted(told, &polls)).await;
            telling.await.unwrap().unwrap();
        }
    }
}
