use std::time::Duration;

/// Exponential backoff with full jitter, bounded in number
/// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
pub(crate) struct Retry {
    done: u32,
    attempts: u32,
}

/// The most one waits before the second try; it doubles from there.
const BASE: Duration = Duration::from_millis(10);
/// The most one waits between two tries.
const CAP: Duration = Duration::from_millis(500);

impl Retry {
    pub(crate) fn new(attempts: u32) -> Self {
        Self { done: 0, attempts }
    }

    /// Waits before the next try; `false` at once when there is none left.
    pub(crate) async fn again(&mut self) -> bool {
        self.done += 1;
        if self.done >= self.attempts {
            return false;
        }
        tokio::time::sleep(pause(self.done, fastrand::f64())).await;
        true
    }
}

/// How long to wait after `done` tries; `jitter` is from 0 to 1.
fn pause(done: u32, jitter: f64) -> Duration {
    let doubled = BASE.saturating_mul(1 << done.saturating_sub(1).min(10));
    doubled.min(CAP).mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_are_jittered_from_zero() {
        let most: Vec<_> = (1..=8).map(|done| pause(done, 1.0).as_millis()).collect();
        assert_eq!(most, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pause(5, 0.0), Duration::ZERO);
        assert_eq!(pause(u32::MAX, 1.0), CAP);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_are_counted() {
        let mut retry = Retry::new(3);
        assert!(retry.again().await);
        assert!(retry.again().await);
        assert!(!retry.again().await);
        assert!(!Retry::new(1).again().await);
    }
}
