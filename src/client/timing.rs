//! Waiting, on a clock that runs through suspend.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::clock::Clock;

/// Timers stand still while the machine is suspended, and the clock does not. Nobody sleeps
/// longer than this in one piece, so that a resume is noticed soon.
const SLICE: Duration = Duration::from_secs(1);

/// Waits until the clock's `elapsed` has reached `at`.
pub(super) async fn until(clock: &dyn Clock, at: Duration) {
    loop {
        let left = at.saturating_sub(clock.elapsed());
        if left.is_zero() {
            return;
        }
        clock.sleep(left.min(SLICE)).await;
    }
}

/// Which of two futures was done.
pub(super) enum Either<A, B> {
    Left(A),
    Right(B),
}

/// The first of two futures to be done; `left` is asked first each time.
pub(super) async fn race<A, B>(left: A, right: B) -> Either<A::Output, B::Output>
where
    A: Future,
    B: Future,
{
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(done) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(done));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

/// Exponential backoff with full jitter: each delay is drawn evenly from nothing up to a limit
/// that doubles, so that those who failed together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    rng: fastrand::Rng,
    first: Duration,
    cap: Duration,
    limit: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, cap: Duration) -> Self {
        Self::with_rng(fastrand::Rng::new(), first, cap)
    }

    fn with_rng(rng: fastrand::Rng, first: Duration, cap: Duration) -> Self {
        let first = first.min(cap);
        Self { rng, first, cap, limit: first }
    }

    pub(super) fn next(&mut self) -> Duration {
        let limit = self.limit;
        self.limit = limit.saturating_mul(2).min(self.cap);
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.u64(..=nanos))
    }

    pub(super) fn reset(&mut self) {
        self.limit = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_drawn_below_a_limit_that_doubles_up_to_a_cap() {
        let ms = Duration::from_millis;
        for seed in 0..200 {
            let mut backoff = Backoff::with_rng(fastrand::Rng::with_seed(seed), ms(100), ms(1500));
            for limit in [100, 200, 400, 800, 1500, 1500] {
                assert!(backoff.next() <= ms(limit));
            }
            backoff.reset();
            assert!(backoff.next() <= ms(100));
        }
    }

    #[test]
    fn the_jitter_is_full() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::with_rng(fastrand::Rng::with_seed(7), second, second);
        let delays: Vec<_> = (0..1000).map(|_| backoff.next()).collect();
        for tenth in 0..10 {
            let (from, to) = (second * tenth / 10, second * (tenth + 1) / 10);
            let within = delays.iter().filter(|delay| (from..to).contains(delay)).count();
            assert!((50..200).contains(&within), "{within} of 1000 in tenth {tenth}");
        }
    }
}
