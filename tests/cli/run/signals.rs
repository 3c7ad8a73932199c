//! Signals on their way to the command.

use std::process::Command;

use rustix::process::Signal;

use super::job::{Stage, stderr, until_dead, until_state};
use crate::process::{Guard, until_some};

#[test]
fn signals_are_passed_on() {
    let stage = Stage::set();
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let script = format!(
            "trap 'echo {name} >got-{name}; exit 3' {name}
             echo x >up-{name}; while :; do sleep 0.02; done"
        );
        let job = stage.start(&[], &script);
        stage.told(&format!("up-{name}"));
        job.signal(signal);
        assert_eq!(job.end().status.code(), Some(3), "{name}");
        assert_eq!(stage.told(&format!("got-{name}")), name);
    }
    // A command that does not handle it: 128 and the number.
    let job = stage.start(&[], "echo x >up; while :; do sleep 0.02; done");
    stage.told("up");
    job.signal(Signal::TERM);
    assert_eq!(job.end().status.code(), Some(143));
}

/// A signal reaches the whole group: a shell that waits for its child does not stand in the way.
#[test]
fn a_signal_reaches_what_the_command_has_started() {
    let stage = Stage::set();
    let job = stage.start(&[], "sh -c 'echo $$ >pid; exec sleep 60'; exit 0");
    let pid = stage.told_pid("pid");
    job.signal(Signal::INT);
    job.end();
    until_dead(pid);
}

#[test]
fn a_signal_ends_the_wait_for_the_lock_and_no_grant_stays() {
    let stage = Stage::set();
    stage.server.take("job", "other", 3_600_000).granted_token();
    let job = stage.start(&["--wait", "10m"], "touch ran");
    // From then on it asks for the lock.
    until_some("it listens", || caught(job.pid(), Signal::TERM).then_some(()));
    job.signal(Signal::TERM);
    let output = job.end();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(!stage.path("ran").exists());
    assert_eq!(stage.server.give_back("job", "other"), 204);
    // Whatever was on its way is given back.
    until_some("it is free", || {
        (stage.server.take("job", "next", 60_000).json["acquired"] == true).then_some(())
    });
}

/// Whether the process has a handler for the signal.
fn caught(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

/// As under `nohup`.
#[test]
fn what_was_ignored_at_the_start_stays_ignored() {
    let stage = Stage::set();
    let wrapped = stage.command(&[], "echo x >up; until [ -e go ]; do sleep 0.02; done; exit 8");
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(wrapped.get_program())
        .args(wrapped.get_args())
        .current_dir(stage.folder.path());
    let wrapper = Guard::spawn(&mut command);
    stage.told("up");
    wrapper.signal(Signal::HUP);
    assert!(!caught(wrapper.pid().as_raw_nonzero().get(), Signal::HUP));
    stage.tell("go");
    let output = wrapper.end();
    assert_eq!(output.status.code(), Some(8), "{}", stderr(&output));
}

#[test]
fn ctrl_z_stops_both_and_continues_both() {
    let stage = Stage::set();
    let job = stage
        .start(&["--ttl", "10m"], "echo $$ >pid; until [ -e go ]; do sleep 0.02; done; exit 2");
    let (wrapper, command) = (job.pid(), stage.told_pid("pid"));
    job.signal(Signal::TSTP);
    until_state(wrapper, 'T');
    until_state(command, 'T');
    stage.tell("go");
    job.signal(Signal::CONT);
    assert_eq!(job.end().status.code(), Some(2));
}
