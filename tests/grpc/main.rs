//! The guard in front of gRPC: a real server and a real client of tonic, over sockets.
#![cfg(feature = "axum")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::future_not_send,
    reason = "helpers of tests are tests, which clippy cannot see; each runs on one thread"
)]

mod calls;
mod deferred;
#[cfg(all(feature = "exclusive", feature = "testing"))]
mod exclusive;
mod ledger;
mod mixed;
mod streams;
mod wire;
