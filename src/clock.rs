//! Time, passed in rather than read, so that a test can hold it.

use std::fmt;
use std::time::Duration;

use futures_core::future::BoxFuture;

/// A source of time. [`SystemClock`] in production, `testing::ManualClock` in tests.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. May jump either way when the system's clock is set.
    fn epoch_ms(&self) -> i64;

    /// Time since some fixed point of the past. Never goes back, and runs on while the machine
    /// is suspended, where the platform can tell (Linux `CLOCK_BOOTTIME`, macOS
    /// `CLOCK_MONOTONIC`).
    fn elapsed(&self) -> Duration;

    /// A future that is done once [`elapsed`](Self::elapsed) has grown by `duration`, or later: it
    /// may stand still while the machine is suspended.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The clocks of the operating system, and tokio's timer.
#[cfg(any(feature = "server", feature = "client", feature = "exclusive"))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(any(feature = "server", feature = "client", feature = "exclusive"))]
impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
    fn epoch_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }

    fn elapsed(&self) -> Duration {
        elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// What [`SystemClock`] counts, for who needs neither a runtime nor a wall clock. Without the
/// features that bring that clock it may stand still while the machine is suspended.
#[cfg(all(unix, any(feature = "server", feature = "client", feature = "exclusive")))]
pub(crate) fn elapsed() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = clock_gettime(CLOCK);
    // Both parts count up from boot and are never negative.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(all(unix, any(feature = "server", feature = "client", feature = "exclusive"))))]
#[allow(clippy::disallowed_methods, reason = "this is where the monotonic clock is read")]
pub(crate) fn elapsed() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
