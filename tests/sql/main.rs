//! The fence in the database, one body for every database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::future_not_send, reason = "a test runs on one thread")]

#[allow(dead_code)]
mod support;

mod admin;
mod cancellation;
mod column;
mod contract;
mod death;
mod enforce;
mod foreign;
mod forms;
mod interleavings;
mod migrations;
mod names;
mod only_mysql;
mod only_postgres;
mod only_sqlite;
mod proxy;
mod servers;
mod statement;
mod traps;
