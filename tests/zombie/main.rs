//! The demo, as `cargo demo` runs it.

#![cfg(all(feature = "full", unix))]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails may panic"
)]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

#[allow(clippy::future_not_send, dead_code, unused_macros, unused_imports)]
#[path = "../sql/support.rs"]
mod support;

use self::support::{Db, Harness, on_every_server};

fn demo(args: &[&str]) -> Output {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_fencing"));
    path.pop();
    Command::new(path.join("examples/zombie"))
        .args(args)
        .output()
        .expect("the example is there: build it with cargo build --features full --examples")
}

fn last_line(output: &Output) -> Value {
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// The demo ran to its end, and each scene ended as it must.
fn ended_as_it_must(output: &Output) {
    let end = last_line(output);
    assert!(output.status.success(), "{end}");
    assert_eq!(end["ok"], true);
    let scene = |n: usize| {
        let scene = &end["scenes"][n];
        json!([
            scene["scene"],
            scene["token_a"],
            scene["token_b"],
            scene["zombie_status"],
            scene["a_reports_loss"],
            scene["stock"],
            scene["applied"]
        ])
    };
    assert_eq!(scene(0), json!(["both-on", 33, 34, 412, true, 3, [34]]));
    assert_eq!(scene(1), json!(["fence-off", 33, 34, 204, true, 4, [34, 33]]));
    assert_eq!(scene(2), json!(["lease-off", 33, null, null, null, 5, []]));
}

#[test]
fn the_three_scenes_end_as_they_must() {
    ended_as_it_must(&demo(&["--json", "--lease-ms", "500"]));
}

on_every_server! {
    the_same_on_a_database_that_is_shared,
}

/// It can be played twice on one database, and leaves nothing there.
async fn the_same_on_a_database_that_is_shared<H: Harness>() {
    let db = Db::<H>::empty().await;
    for scenes in [&[][..], &["--scene", "both-on"]] {
        let url = db.url();
        let args = [&["--json", "--lease-ms", "500", "--database", &url][..], scenes].concat();
        let output = demo(&args);
        if scenes.is_empty() {
            ended_as_it_must(&output);
        }
        assert!(output.status.success(), "{output:?}");
    }
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'demo%'";
    let ours =
        format!("{tables} AND table_schema = '{}'", db.url().rsplit(['/', '=']).next().unwrap());
    assert_eq!(db.number(&ours).await, Some(0));
}

#[test]
fn one_scene_can_be_played_alone_and_for_people() {
    let output = demo(&["--scene", "both-on", "--lease-ms", "300"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    for part in ["SIGSTOP", "SIGCONT", "412 Precondition Failed", "as it must"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains('\u{1b}'), "no colours into a pipe");
}

#[test]
fn wrong_flags_are_refused() {
    for args in [
        &["--lease-ms", "0"][..],
        &["--scene", "nonsense"],
        &["--nonsense"],
        &["--keep", "x", "--database", "mysql://x/y"],
    ] {
        assert_eq!(demo(args).status.code(), Some(2), "{args:?}");
    }
}
