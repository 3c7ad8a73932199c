//! The `fencing` program, as a process.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

#[allow(clippy::future_not_send, dead_code, unused_macros, unused_imports)]
#[path = "../sql/support.rs"]
mod support;

mod access;
mod command_line;
mod connections;
mod crash;
mod databases;
mod process;
#[cfg(target_os = "linux")]
mod run;
mod scripts;
mod serve;
mod tls;
