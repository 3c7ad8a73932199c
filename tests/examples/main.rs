//! The smaller examples, as anybody would run them.

#![cfg(feature = "full")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails may panic")]

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
