//! The `fencing` program, as a process.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

mod command_line;
mod crash;
mod process;
mod serve;
