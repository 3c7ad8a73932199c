use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::watch;

use crate::clock::Clock;

/// A [`Clock`] that stands still until a test moves it.
///
/// Clones share the time. [`advance`](Self::advance) moves it and wakes whoever has slept long
/// enough; [`until_sleeping`](Self::until_sleeping) waits until the code under test has gone to
/// sleep, so that a test need never sleep itself:
///
/// ```
/// use std::time::Duration;
///
/// use fencing::clock::Clock;
/// use fencing::testing::ManualClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::new();
/// let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(30)));
/// clock.until_sleeping(1).await;
/// clock.advance(Duration::from_secs(30));
/// sleeper.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    counts: watch::Sender<Counts>,
}

#[derive(Clone, Copy, PartialEq, Default)]
struct Counts {
    /// How many futures are asleep.
    asleep: usize,
    /// How many sleeps were begun so far.
    begun: u64,
}

struct State {
    epoch_ms: i64,
    elapsed: Duration,
    /// What sleeps are counted in: stands still in [`ManualClock::suspend`].
    timer: Duration,
    begun: u64,
    sleepers: BTreeMap<u64, Sleeper>,
}

struct Sleeper {
    until: Duration,
    /// There once the future has been polled.
    waker: Option<Waker>,
}

impl ManualClock {
    /// Where the wall clock of a new one stands: 2023-11-14T22:13:20Z.
    pub const START_EPOCH_MS: i64 = 1_700_000_000_000;

    /// A clock at [`START_EPOCH_MS`](Self::START_EPOCH_MS).
    #[must_use]
    pub fn new() -> Self {
        let state = State {
            epoch_ms: Self::START_EPOCH_MS,
            // Not zero, so that arithmetic that would go below it is not hidden.
            elapsed: Duration::from_secs(1000),
            timer: Duration::ZERO,
            begun: 0,
            sleepers: BTreeMap::new(),
        };
        Self(Arc::new(Shared { state: Mutex::new(state), counts: watch::Sender::default() }))
    }

    /// Moves wall clock and monotonic clock on by `duration`, and wakes those whose time has come.
    pub fn advance(&self, duration: Duration) {
        self.change(|state| {
            state.epoch_ms = state.epoch_ms.saturating_add(millis(duration));
            state.elapsed = state.elapsed.saturating_add(duration);
            state.timer = state.timer.saturating_add(duration);
        });
    }

    /// Moves both clocks on by `duration` as a suspended machine does: timers have stood still
    /// meanwhile, so nobody wakes.
    pub fn suspend(&self, duration: Duration) {
        self.change(|state| {
            state.epoch_ms = state.epoch_ms.saturating_add(millis(duration));
            state.elapsed = state.elapsed.saturating_add(duration);
        });
    }

    /// Sets the wall clock alone, either way, as an administrator or NTP may.
    pub fn set_epoch_ms(&self, epoch_ms: i64) {
        self.change(|state| state.epoch_ms = epoch_ms);
    }

    /// How many futures are asleep: polled, not done, not dropped.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.0.counts.borrow().asleep
    }

    /// Waits until at least `count` futures are asleep. Waits for ever if that never happens: give
    /// the test as a whole a time limit.
    ///
    /// Those whom [`advance`](Self::advance) has woken no longer count.
    pub async fn until_sleeping(&self, count: usize) {
        // The sender is in `self`, so it cannot go away meanwhile.
        let _ = self.0.counts.subscribe().wait_for(|counts| counts.asleep >= count).await;
    }

    /// How many sleeps were begun so far, whether they are over or not.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.0.counts.borrow().begun
    }

    /// Waits until `count` sleeps were begun in all. With [`begun`](Self::begun) before a step of
    /// the test, this tells that the code under test has gone to sleep *after* the step.
    pub async fn until_begun(&self, count: u64) {
        let _ = self.0.counts.subscribe().wait_for(|counts| counts.begun >= count).await;
    }

    /// How long until the first of those who sleep wakes.
    #[must_use]
    pub fn until_next_wake(&self) -> Option<Duration> {
        let state = self.lock();
        let first = state.sleepers.values().map(|sleeper| sleeper.until).min()?;
        Some(first.saturating_sub(state.timer))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let timer = state.timer;
        let woken: Vec<Waker> = state
            .sleepers
            .extract_if(.., |_, sleeper| sleeper.until <= timer)
            .filter_map(|(_, sleeper)| sleeper.waker)
            .collect();
        self.publish(&state);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn publish(&self, state: &State) {
        let asleep = state.sleepers.values().filter(|s| s.waker.is_some()).count();
        let counts = Counts { asleep, begun: state.begun };
        self.0.counts.send_if_modified(|old| std::mem::replace(old, counts) != counts);
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("ManualClock")
            .field("epoch_ms", &state.epoch_ms)
            .field("elapsed", &state.elapsed)
            .field("sleeping", &self.sleeping())
            .finish()
    }
}

impl Clock for ManualClock {
    fn epoch_ms(&self) -> i64 {
        self.lock().epoch_ms
    }

    fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.lock();
        let id = state.begun;
        state.begun += 1;
        // The time counts from here, not from the first poll, as with tokio's timer.
        let until = state.timer.saturating_add(duration);
        if until > state.timer {
            state.sleepers.insert(id, Sleeper { until, waker: None });
        }
        self.publish(&state);
        drop(state);
        Box::pin(Sleep { clock: self.clone(), id })
    }
}

/// What [`ManualClock`] sleeps with.
struct Sleep {
    clock: ManualClock,
    id: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.lock();
        let Some(sleeper) = state.sleepers.get_mut(&self.id) else { return Poll::Ready(()) };
        sleeper.waker = Some(cx.waker().clone());
        self.clock.publish(&state);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let mut state = self.clock.lock();
        if state.sleepers.remove(&self.id).is_some() {
            self.clock.publish(&state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn advance_wakes_those_whose_time_has_come() {
        let clock = ManualClock::new();
        let (start, wall) = (clock.elapsed(), clock.epoch_ms());
        let short = tokio::spawn(clock.sleep(Duration::from_secs(1)));
        let long = tokio::spawn(clock.sleep(Duration::from_secs(3)));
        clock.until_sleeping(2).await;
        assert_eq!(clock.until_next_wake(), Some(Duration::from_secs(1)));
        clock.advance(Duration::from_millis(2500));
        assert_eq!(clock.sleeping(), 1);
        short.await.unwrap();
        assert!(!long.is_finished());
        clock.advance(Duration::from_millis(500));
        long.await.unwrap();
        assert_eq!(clock.elapsed() - start, Duration::from_secs(3));
        assert_eq!(clock.epoch_ms() - wall, 3000);
    }

    #[tokio::test]
    async fn a_test_can_wait_for_the_next_sleep() {
        let clock = ManualClock::new();
        let task = tokio::spawn({
            let clock = clock.clone();
            async move {
                for seconds in [3, 5] {
                    clock.sleep(Duration::from_secs(seconds)).await;
                }
            }
        });
        clock.until_begun(1).await;
        let begun = clock.begun();
        clock.advance(Duration::from_secs(3));
        clock.until_begun(begun + 1).await;
        assert_eq!(clock.until_next_wake(), Some(Duration::from_secs(5)));
        clock.advance(Duration::from_secs(5));
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_suspended_machine_wakes_nobody() {
        let clock = ManualClock::new();
        let start = clock.elapsed();
        let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(1)));
        clock.until_sleeping(1).await;
        clock.suspend(Duration::from_secs(60));
        assert_eq!((clock.sleeping(), clock.elapsed() - start), (1, Duration::from_secs(60)));
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_sleep_is_forgotten_and_no_time_is_no_sleep() {
        let clock = ManualClock::new();
        clock.sleep(Duration::ZERO).await;
        let sleep = clock.sleep(Duration::from_secs(1));
        assert_eq!(clock.sleeping(), 0);
        drop(sleep);
        let task = tokio::spawn(clock.sleep(Duration::MAX));
        clock.until_sleeping(1).await;
        task.abort();
        let _ = task.await;
        assert_eq!((clock.sleeping(), clock.until_next_wake()), (0, None));
    }
}
