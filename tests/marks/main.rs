//! Stores of marks: the suite over those of this crate, and the suite itself over broken ones.
#![cfg(feature = "testing")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are tests, which clippy cannot see"
)]

mod broken;
mod cached;
mod memory;
mod seeded;
