//! How it ends when nothing is lost: exit codes, input and output, the release.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;

use super::job::{Stage, Stray, state, stderr, until_dead};
use crate::process::{Guard, fencing, run};

#[test]
fn the_exit_code_of_the_command_is_passed_on() {
    let stage = Stage::set();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let output = stage.run(&[], script);
        assert_eq!(output.status.code(), Some(code), "{script}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        assert!(!stage.server.is_held("job"), "{script}");
    }
}

#[test]
fn input_output_and_arguments_are_those_of_the_command() {
    let stage = Stage::set();
    let mut command = stage.command(&[], "cat; echo \"$1|$2\"; echo said >&2");
    command.args(["sh", "--help", "a  b\n'\"$x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\0the\xff pipe\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\0the\xff pipe\n--help|a  b\n'\"$x\n");
    assert_eq!((stderr(&output), output.status.code()), ("said\n", Some(0)));
}

/// Each run has a higher token than the one before, and learns it; the secret it does not learn.
#[test]
fn i7_the_command_gets_token_and_resource_and_no_secret() {
    let stage = Stage::set();
    for token in 1..=2 {
        let mut command = stage.command(&[], "env");
        command.env("FENCING_OWNER_TOKEN", "secret-of-an-outer-lock");
        let output = stage.start_command(&mut command).end();
        let environment = String::from_utf8(output.stdout).unwrap();
        let has = |line: &str| environment.lines().any(|l| l == line);
        assert!(has(&format!("FENCING_TOKEN={token}")), "{environment}");
        assert!(has("FENCING_RESOURCE=job"), "{environment}");
        assert!(!environment.contains("OWNER_TOKEN"), "{environment}");
    }
}

#[test]
fn the_lock_is_held_while_the_command_runs_and_labelled() {
    let stage = Stage::set();
    let job = stage.start(&["--owner", "me"], "echo x > up; until [ -e go ]; do sleep 0.02; done");
    stage.told("up");
    assert_eq!(stage.server.get("/locks/job").json["owner"], "me");
    assert_eq!(stage.server.take("job", "other", 1000).json["acquired"], false);
    stage.tell("go");
    assert_eq!(job.end().status.code(), Some(0));
    assert_eq!(stage.server.take("job", "other", 1000).granted_token(), 2);
}

#[test]
fn a_lock_that_another_holds_is_75_and_nothing_is_run() {
    let stage = Stage::set();
    stage.server.take("job", "other", 3_600_000).granted_token();
    for flags in [&[][..], &["--wait", "100ms"]] {
        let output = stage.run(flags, "echo ran; touch ran");
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(output.stdout.is_empty());
        let line = stderr(&output);
        assert!(line.contains("another holds it") && line.contains("resource=`job`"), "{line}");
        assert!(!stage.path("ran").exists());
    }
}

#[test]
fn it_waits_for_the_lock_as_long_as_it_was_told() {
    let stage = Stage::set();
    stage.server.take("job", "other", 3_600_000).granted_token();
    let job = stage.start(&["--wait", "60s"], "echo $FENCING_TOKEN > token");
    assert!(!stage.path("token").exists());
    assert_eq!(stage.server.give_back("job", "other"), 204);
    assert_eq!(job.end().status.code(), Some(0));
    assert_eq!(stage.told("token"), "2");
}

#[test]
fn without_a_server_it_is_69_and_nothing_is_run() {
    let stage = Stage::set();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    // Accepts, as the kernel does for it, and never answers.
    let black_hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", black_hole.local_addr().unwrap());
    for url in [&gone, &silent] {
        let output = stage.start_command(&mut stage.command_at(url, &[], "touch ran")).end();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let line = stderr(&output);
        assert!(
            line.starts_with("fencing: cannot acquire the lock") && line.contains(url),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
        assert!(!stage.path("ran").exists());
    }
}

#[test]
fn what_cannot_be_run_is_127_or_126_and_the_lock_is_released() {
    let stage = Stage::set();
    let text = stage.path("text");
    std::fs::write(&text, "no program").unwrap();
    let text = text.to_str().unwrap();
    for (program, code) in [("no-such-program-here", 127), (text, 126), ("", 127)] {
        let url = stage.server.url();
        let output = run(&["run", "--resource", "job", "--server", &url, "--", program]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains("cannot run the command"), "{output:?}");
        assert!(!stage.server.is_held("job"));
    }
}

#[test]
fn a_wrong_command_line_is_64() {
    let url = "http://127.0.0.1:1";
    for arguments in [
        &["run"][..],
        &["run", "--resource", "job"],
        &["run", "--resource", "job", "true"],
        &["run", "--resource", "job", "--"],
        &["run", "--", "true"],
        &["run", "--resource", "", "--", "true"],
        &["run", "--resource", "job", "--ttl", "0s", "--", "true"],
        &["run", "--resource", "job", "--ttl", "30", "--", "true"],
        &["run", "--resource", "job", "--grace", "-1s", "--", "true"],
        &["run", "--resource", "job", "--server", "ftp://x", "--", "true"],
        &["run", "--resource", "job", "--server", "http://me:hunter2@x", "--", "true"],
        &["run", "--resource", "job", "--server", url, "--owner", " ", "--", "true"],
        &["run", "--resource", "job", "--key-file", "/no/such/file", "--", "true"],
        &["run", "--resource", "job", "--key-file", "/dev/null", "--", "true"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?} {output:?}");
        assert!(!stderr(&output).contains("hunter2"), "{output:?}");
    }
    let mut command = fencing();
    command.args(["run", "--resource", "job", "--", "true"]).env("FENCING_TTL", "soon");
    assert_eq!(Guard::spawn(&mut command).end().status.code(), Some(64));
}

#[test]
fn the_environment_stands_for_flags() {
    let stage = Stage::set();
    let mut command = fencing();
    command
        .args(["run", "--resource", "job", "--", "sh", "-c"])
        .arg("\"$FENCING\" show --resource job")
        .env("FENCING", env!("CARGO_BIN_EXE_fencing"))
        .env("FENCING_SERVER", stage.server.url())
        .env("FENCING_OWNER", "by environment")
        .env("FENCING_TTL", "1h");
    let output = Guard::spawn(&mut command).end();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("held by by environment\ntoken 1\n"), "{shown}");
}

/// R17: the lock is released when the command and what it has started have ended, and not when
/// it was told to.
#[test]
fn the_release_comes_after_the_end() {
    let stage = Stage::set();
    let late = "sleep 0.4; \"$FENCING\" show --resource job >shown; echo $? >code";
    // What it has left behind works on for a while.
    let output = stage.run(&[], &format!("({late}) & exit 3"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(stage.told("code"), "0", "it was held to the end");
    assert!(!stage.server.is_held("job"));

    std::fs::remove_file(stage.path("code")).unwrap();
    let job = stage.start(
        &[],
        &format!("trap '{late}; exit 4' TERM; echo x >up; while :; do sleep 0.02; done"),
    );
    stage.told("up");
    job.signal(rustix::process::Signal::TERM);
    assert_eq!(job.end().status.code(), Some(4));
    assert_eq!(stage.told("code"), "0", "it was held to the end");
    assert!(!stage.server.is_held("job"));
}

/// What the command leaves behind in its group does not work on without the lock.
#[test]
fn processes_left_behind_are_ended_before_the_release() {
    let stage = Stage::set();
    let left = "exec >/dev/null 2>&1; trap '' TERM; while :; do sleep 0.02; done";
    let output =
        stage.run(&["--grace", "200ms"], &format!("sh -c \"{left}\" & echo $! >pid; exit 5"));
    assert_eq!(output.status.code(), Some(5));
    let left = Stray(stage.told_pid("pid"));
    until_dead(left.0);
    assert!(!stage.server.is_held("job"));

    // In a session of its own it stays.
    let output = stage.run(&[], "setsid sleep 600 >/dev/null 2>&1 & echo $! >stays; exit 6");
    assert_eq!(output.status.code(), Some(6));
    let stays = Stray(stage.told_pid("stays"));
    assert!(state(stays.0).is_some());
}

#[test]
fn a_release_without_a_server_does_not_change_the_exit_code() {
    let stage = Stage::set();
    let job =
        stage.start(&["--ttl", "1m"], "echo x >up; until [ -e go ]; do sleep 0.02; done; exit 9");
    stage.told("up");
    stage.server.signal(rustix::process::Signal::KILL);
    stage.tell("go");
    let output = job.end();
    assert_eq!(output.status.code(), Some(9));
    assert!(stderr(&output).contains("ends by its TTL"), "{output:?}");
}

#[test]
fn help_tells_what_there_is_to_know() {
    let output = run(&["run", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    for part in [
        "-- <COMMAND>...",
        "FENCING_SERVER",
        "[default: http://127.0.0.1:7070]",
        "FENCING_KEY_FILE",
        "FENCING_TOKEN",
        "SIGTERM",
        "setsid",
        "75 ",
        "76 ",
        "128+N",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    assert!(!String::from_utf8(run(&["--help"]).stdout).unwrap().contains("become"));
}
