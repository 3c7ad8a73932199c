//! The guard as a service sees it: requests in, responses out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are tests, which clippy cannot see"
)]

#[cfg(feature = "axum")]
mod axum_routes;
#[cfg(feature = "axum")]
mod support;
