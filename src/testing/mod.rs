//! For tests: a clock under the test's control.

mod clock;

pub use self::clock::ManualClock;
