//! The guard as a service sees it: requests in, responses out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::future_not_send,
    reason = "helpers of tests are tests, which clippy cannot see; each runs on one thread"
)]

#[cfg(feature = "axum")]
mod deferred;
#[cfg(feature = "axum")]
mod extractor;
#[cfg(all(feature = "axum", feature = "exclusive", feature = "testing"))]
mod gate;
#[cfg(feature = "axum")]
mod headers;
mod logs;
#[cfg(all(feature = "axum", feature = "metrics", feature = "exclusive", feature = "testing"))]
mod observed;
mod plain;
mod plausible;
mod readiness;
#[cfg(feature = "axum")]
mod routes;
#[cfg(feature = "testing")]
mod socket;
mod stores;
mod support;
#[cfg(all(feature = "axum", feature = "sqlite"))]
mod transaction;
