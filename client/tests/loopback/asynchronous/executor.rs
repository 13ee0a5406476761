//! A runtime of the tests' own: a future on one thread, which parks. It has no timer and no reactor, so that a future
//! which needs one of these, or which forgets to wake, ends the test.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::daemon::{Daemon, Settings};

/// Only a wake-up that was lost takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts how often it is woken, and unparks a thread.
pub(crate) struct Count {
    woken: AtomicUsize,
    thread: Thread,
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Count {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { woken: AtomicUsize::new(0), thread: thread::current() })
    }

    pub(crate) fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }

    /// Returns when it was woken so often.
    pub(crate) fn await_woken(&self, times: usize) {
        let began = Instant::now();
        while self.woken() < times {
            assert!(began.elapsed() < PATIENCE, "woken {} times; needed: {times}", self.woken());
            thread::park_timeout(PATIENCE);
        }
    }
}

/// Polls when woken, and not before.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, count) = (pin!(future), Count::new());
    let waker = Waker::from(Arc::clone(&count));
    let mut seen = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        count.await_woken(seen + 1);
        seen = count.woken();
    }
}

/// Polls once. None: it is pending.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// When a future is dropped that was polled often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// As soon as it is pending.
    Pending,
    /// When it was woken, and could go on.
    Woken,
}

/// Polls so often, and drops. None: it was not done by then.
pub(crate) fn poll_times<F: Future>(future: F, polls: usize, dropped: Dropped) -> Option<F::Output> {
    let (mut future, count) = (pin!(future), Count::new());
    let waker = Waker::from(Arc::clone(&count));
    for poll in 1..=polls {
        let seen = count.woken();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if poll < polls || dropped == Dropped::Woken {
            count.await_woken(seen + 1);
        }
    }
    None
}

/// A future that gives up after so many polls. None: it was not done by then.
pub(crate) struct Limited<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

pub(crate) fn limited<F: Future>(future: F, polls: usize) -> Limited<F> {
    Limited { future: Some(Box::pin(future)), polls }
}

impl<F: Future> Future for Limited<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.polls -= 1;
        let future = self.future.as_mut().expect("not polled after its end");
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => {
                self.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Ends when all of them have.
pub(crate) async fn join_all(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Lets the other futures of its thread go on.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs a scenario with a daemon of its own on a parking thread, in a tokio runtime of one thread, and as a task that
/// moves between the threads of one with several.
pub(crate) fn everywhere<F: Future<Output = ()> + Send + 'static>(
    settings: Settings,
    scenario: impl Fn(Arc<Daemon>) -> F,
) {
    block_on(scenario(Arc::new(Daemon::start(settings))));
    let one = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    one.block_on(scenario(Arc::new(Daemon::start(settings))));
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let task = several.spawn(scenario(Arc::new(Daemon::start(settings))));
    several.block_on(task).expect("the scenario did not panic");
}
