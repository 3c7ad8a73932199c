//! The lock endpoint: one body of tests for every store behind it.

#![allow(
    clippy::clone_on_ref_ptr,
    clippy::expect_used,
    clippy::future_not_send,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests, where a panic is the answer"
)]

#[allow(dead_code, unused_macros, unused_imports)]
#[path = "../sql/support.rs"]
mod support;

#[allow(dead_code)]
#[path = "../sql/proxy.rs"]
mod proxy;

mod access;
mod attacks;
mod contract;
mod fuzz;
mod grants;
mod hang_up;
mod line;
mod notify;
mod secrets;
mod servers;
mod settings;
mod site;
mod sqlite;
mod waiting;
