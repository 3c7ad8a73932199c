//! The smaller examples, as anybody would run them.

#![cfg(feature = "full")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

mod etcd;
mod issuers;
mod redis;

use std::path::PathBuf;
use std::process::{Command, Output};

/// The example beside the test binaries. `cargo test` builds it.
fn run(example: &str, args: &[&str]) -> Output {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_fencing"));
    path.pop();
    Command::new(path.join("examples").join(example))
        .args(args)
        .output()
        .expect("the example is there: build it with cargo build --features full --examples")
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Where a server for tests is.
fn server(variable: &str, what: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("set {variable} to {what}; tests/run does, and starts one"))
}

fn assert_zombie_refused(issuer: &str, address: &str) {
    let output = run("foreign_tokens", &[issuer, address]);
    let lines = said(&output);
    assert!(output.status.success(), "{output:?}");
    for line in [
        "A writes: 204 No Content",
        "B writes: 204 No Content",
        "A writes, who does not know: 412 Precondition Failed",
        "the report is `by B`",
    ] {
        assert!(lines.contains(line), "{lines}");
    }
}

#[test]
fn foreign_tokens_says_what_it_cannot_do() {
    for (args, expected) in
        [(&[][..], "usage:"), (&["redis", "127.0.0.1:1"], "address=`127.0.0.1:1`")]
    {
        let output = run("foreign_tokens", args);
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn plain_hyper_refuses_a_zombie_and_a_stranger() {
    let output = run("plain_hyper", &["--check"]);
    assert!(output.status.success(), "{output:?}");
    let lines = said(&output);
    for line in [
        "the holder writes: 204 No Content",
        "the zombie writes: 412 Precondition Failed",
        "a stranger writes: 428 Precondition Required",
    ] {
        assert!(lines.contains(line), "{lines}");
    }
}

#[test]
fn plain_hyper_says_where_it_cannot_listen() {
    let output = run("plain_hyper", &["nowhere"]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("address=`nowhere`"), "{error}");
}
