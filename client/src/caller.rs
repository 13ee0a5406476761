//! Who waits: a thread, inside its call, or a future, whose runtime does something else meanwhile.
//!
//! What may have to wait is written once, as an `async fn` that is told its [`Caller`]. For a thread every wait in it
//! blocks, so that it is done when it is polled once: [`block`] does that. For a future the same waits are pending, and
//! what they have left behind is taken back when the future is dropped in one of them.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use weir_flow::ids::Time;

use crate::error::Error;

/// On whose behalf something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A thread, which sleeps.
    Thread,
    /// A future, which returns and is woken.
    Future,
}

/// The outcome of work whose caller is [`Caller::Thread`].
pub(crate) fn block<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(Error::protocol("a call that was to block has returned early")),
    }
}

/// Wakes a thread that parks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The outcome of a future that knows nothing of who waits for it: a thread parks until it is woken.
pub(crate) async fn wait_for<T>(caller: Caller, work: impl Future<Output = T>) -> T {
    if caller == Caller::Future {
        return work.await;
    }
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = work.as_mut().poll(&mut context) {
            return outcome;
        }
        thread::park();
    }
}

/// Does work that blocks and cannot be waited for otherwise, for a thread on itself, for a future on a short-lived
/// thread of this name. A future that is dropped does not end the work: what it makes is dropped when it is done.
pub(crate) async fn work_that_blocks<T: Send + 'static>(
    caller: Caller,
    name: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if caller == Caller::Thread {
        return work();
    }
    let handed = Arc::new(Handed::default());
    let hands = Arc::clone(&handed);
    thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // Also if the work panics: who waits for it must not do so for ever.
            let mut outcome = Over { hands, outcome: None };
            outcome.outcome = Some(work());
        })
        .map_err(|cause| Error::os("starting a thread to attach with", cause))?;
    std::future::poll_fn(|context| handed.poll(context)).await
}

/// Where a thread leaves its outcome for a future.
struct Handed<T> {
    state: Mutex<HandedState<T>>,
}

struct HandedState<T> {
    outcome: Option<Result<T, Error>>,
    waker: Option<Waker>,
}

impl<T> Default for Handed<T> {
    fn default() -> Self {
        Self { state: Mutex::new(HandedState { outcome: None, waker: None }) }
    }
}

impl<T> Handed<T> {
    fn lock(&self) -> MutexGuard<'_, HandedState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<T, Error>> {
        let waker = context.waker().clone();
        let mut state = self.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        let before = state.waker.replace(waker);
        drop(state);
        // What a waker does when it is dropped is its runtime's business, and not to be done under a lock.
        drop(before);
        Poll::Pending
    }
}

/// Hands an outcome over when it is dropped.
struct Over<T> {
    hands: Arc<Handed<T>>,
    outcome: Option<Result<T, Error>>,
}

impl<T> Drop for Over<T> {
    fn drop(&mut self) {
        let died = || Err(Error::protocol("the thread that was to attach has panicked"));
        let mut state = self.hands.lock();
        state.outcome = Some(self.outcome.take().unwrap_or_else(died));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A turn that one at a time can have, for work that blocks. Others wait for it, threads and futures alike.
///
/// It is given to who asks while nobody has it, and to nobody in advance: a future that is not polled any more keeps no
/// turn from anybody. It must not be held over an `await` of a future either; [`work_that_blocks`] can have it.
#[derive(Clone, Default)]
pub(crate) struct Turn {
    state: Arc<Mutex<TurnState>>,
}

#[derive(Default)]
struct TurnState {
    is_taken: bool,
    next_key: u64,
    /// Those that wait for the turn to end. All of them are woken then, and wait anew if they come too late.
    waiting: Vec<Waiting>,
}

/// One that waits for a turn.
struct Waiting {
    key: u64,
    waker: Waker,
    /// Until when it has patience.
    deadline: Time,
}

/// Has the turn until it is dropped.
pub(crate) struct Taken {
    turn: Turn,
    deadline: Time,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody has it. Those that have it before look at [`Taken::until`], so that this is not long after
    /// `deadline`.
    pub(crate) async fn take(&self, caller: Caller, deadline: Time) -> Taken {
        let mut place = Place { turn: self, key: None };
        wait_for(caller, std::future::poll_fn(|context| place.poll(context, deadline))).await
    }
}

/// A place among those that wait for a turn. Given up when it is dropped.
struct Place<'a> {
    turn: &'a Turn,
    /// Its entry, which may be gone: it was woken then.
    key: Option<u64>,
}

impl Place<'_> {
    fn poll(&mut self, context: &Context<'_>, deadline: Time) -> Poll<Taken> {
        let waker = context.waker().clone();
        let mut state = self.turn.lock();
        if !state.is_taken {
            state.is_taken = true;
            return Poll::Ready(Taken { turn: self.turn.clone(), deadline });
        }
        let mine = self.key.and_then(|key| state.waiting.iter_mut().find(|waiting| waiting.key == key));
        let before = match mine {
            Some(waiting) => Some(std::mem::replace(&mut waiting.waker, waker)),
            None => {
                let key = state.next_key;
                state.next_key += 1;
                state.waiting.push(Waiting { key, waker, deadline });
                self.key = Some(key);
                None
            }
        };
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.turn.lock();
        let at = state.waiting.iter().position(|waiting| waiting.key == key);
        let left = at.map(|at| state.waiting.swap_remove(at));
        drop(state);
        drop(left);
    }
}

impl Taken {
    /// When it has to end at the latest: somebody's patience, of those that wait now and of who has it, ends then.
    pub(crate) fn until(&self) -> Time {
        let state = self.turn.lock();
        state.waiting.iter().map(|waiting| waiting.deadline).fold(self.deadline, Time::min)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.turn.lock();
        state.is_taken = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|waiting| waiting.waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_turn_is_had_by_one_at_a_time_and_threads_and_futures_all_get_it() {
        let turn = Turn::default();
        let (inside, had) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..8 {
                let (turn, inside, had) = (&turn, &inside, &had);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let work = async {
                            let caller = if number % 2 == 0 { Caller::Thread } else { Caller::Future };
                            let _taken = turn.take(caller, Time(0)).await;
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            had.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        };
                        block(wait_for(Caller::Thread, work)).expect("a turn");
                    }
                });
            }
        });
        assert_eq!(had.load(Ordering::SeqCst), 8 * 200);
    }

    #[test]
    fn a_turn_ends_before_the_patience_of_those_that_wait_and_nobody_keeps_it_who_is_not_polled() {
        let turn = Turn::default();
        let first = block(async { Ok(turn.take(Caller::Thread, Time(50)).await) }).expect("free");
        assert_eq!(first.until(), Time(50));
        let mut waiting = [90, 30, 70].map(|patience| Box::pin(turn.take(Caller::Future, Time(patience))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.iter_mut().all(|waiting| waiting.as_mut().poll(&mut context).is_pending()));
        assert_eq!(first.until(), Time(30));
        drop(first);
        // The others were woken and do not look: it is there for who does.
        let Poll::Ready(next) = waiting[2].as_mut().poll(&mut context) else { panic!("nobody has it") };
        assert!(waiting[0].as_mut().poll(&mut context).is_pending());
        assert_eq!(next.until(), Time(70));
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_waits_for_a_turn_has_one_place_and_is_woken_by_the_waker_of_its_last_poll() {
        let turn = Turn::default();
        let counts = [0; 4].map(|_| Arc::new(Count::default()));
        let places = || turn.lock().waiting.len();
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::SeqCst));
        let first = block(async { Ok(turn.take(Caller::Thread, Time(50)).await) }).expect("free");
        let (mut stays, mut leaves) =
            (Box::pin(turn.take(Caller::Future, Time(90))), Box::pin(turn.take(Caller::Future, Time(10))));
        for count in &counts[..3] {
            let waker = Waker::from(Arc::clone(count));
            assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let waker = Waker::from(Arc::clone(&counts[3]));
        assert!(leaves.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!((places(), first.until()), (2, Time(10)));
        // Who waits no more is not woken, and its patience is nobody's any more.
        drop(leaves);
        assert_eq!((places(), first.until()), (1, Time(50)));
        drop(first);
        assert_eq!(woken(), [0, 0, 1, 0]);
        // Woken, and too late: it waits anew.
        let second = block(async { Ok(turn.take(Caller::Thread, Time(50)).await) }).expect("free");
        let waker = Waker::from(Arc::clone(&counts[1]));
        assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(second);
        assert_eq!(woken(), [0, 1, 1, 0]);
        drop(stays);
        assert_eq!(places(), 0);
    }

    #[test]
    fn work_on_a_thread_of_its_own_is_handed_over_and_a_panic_in_it_is_an_error() {
        let done = wait_for(Caller::Thread, work_that_blocks(Caller::Future, "weir-test", || Ok(7)));
        assert_eq!(block(done).expect("done"), 7);
        let died =
            work_that_blocks(Caller::Future, "weir-test", || -> Result<(), Error> { panic!("as told") });
        let error = block(wait_for(Caller::Thread, died)).expect_err("nobody waits for ever");
        assert!(error.to_string().contains("panicked"), "{error}");
        // Nobody waits for it any more.
        drop(work_that_blocks(Caller::Future, "weir-test", || Ok(7)));
    }
}
