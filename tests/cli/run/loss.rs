//! The lock is lost while the command runs.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use super::job::{Stage, Stray, state, stderr, until_dead};
use crate::process::{Server, until_some};

/// Says so, in one line and by its exit code.
#[track_caller]
fn assert_lost(output: &Output) {
    assert_eq!(output.status.code(), Some(76), "{output:?}");
    let text = stderr(output);
    assert!(text.contains("lost the lock while the command ran"), "{text}");
    assert!(text.contains("resource=`job`") && text.contains("token=`1`"), "{text}");
}

const BUSY: &str = "while :; do sleep 0.02; done";

/// A command that ignores SIGTERM, and another that it has started.
fn stubborn() -> String {
    // Whoever is left over by a fault does not hold the pipes of the test.
    format!(
        "exec >/dev/null 2>&1; trap '' TERM; sh -c \"{BUSY}\" & echo $! >grandchild; echo $$ >child; {BUSY}"
    )
}

#[test]
fn a_killed_server_ends_the_group_though_it_ignores_sigterm() {
    let stage = Stage::set();
    let job = stage.start(&["--ttl", "1s", "--grace", "300ms"], &stubborn());
    let strays = [Stray(stage.told_pid("child")), Stray(stage.told_pid("grandchild"))];
    stage.server.signal(Signal::KILL);
    assert_lost(&job.end());
    for stray in &strays {
        until_dead(stray.0);
    }
}

/// The grace period is the command's to clean up; its exit code does not hide the loss.
#[test]
fn a_command_that_obeys_sigterm_has_its_time_and_it_is_still_a_loss() {
    let stage = Stage::set();
    let script = format!("trap 'sleep 0.3; echo x >clean; exit 0' TERM; echo x >up; {BUSY}");
    let job = stage.start(&["--ttl", "1s", "--grace", "60s"], &script);
    stage.told("up");
    stage.server.signal(Signal::KILL);
    assert_lost(&job.end());
    assert_eq!(stage.told("clean"), "x");
}

/// The shell dies at once of SIGTERM, and what it has started has its time all the same.
#[test]
fn the_grace_period_is_that_of_the_whole_group() {
    let stage = Stage::set();
    let cleans = format!("trap 'sleep 0.3; echo x >clean; exit 0' TERM; echo x >up; {BUSY}");
    std::fs::write(stage.path("cleans.sh"), cleans).unwrap();
    let job = stage.start(&["--ttl", "1s", "--grace", "60s"], "sh cleans.sh; true");
    stage.told("up");
    stage.server.signal(Signal::KILL);
    assert_lost(&job.end());
    assert_eq!(stage.told("clean"), "x");
}

/// Connections stay, and answers do not come any more.
#[test]
fn a_network_black_hole_is_a_loss_at_the_deadline() {
    let stage = Stage::set();
    let network = Network::to(&stage.server.address);
    let flags = ["--ttl", "1s", "--grace", "300ms"];
    let mut command = stage.command_at(&network.url(), &flags, &stubborn());
    let job = stage.start_command(&mut command);
    let strays = [Stray(stage.told_pid("child")), Stray(stage.told_pid("grandchild"))];
    network.swallow();
    assert_lost(&job.end());
    for stray in &strays {
        until_dead(stray.0);
    }
}

/// Case 51, R15: the wrapper is stopped past the TTL while the command works on. Another holds the
/// lock, so the token that the command writes with is stale; once the wrapper wakes up it ends it.
#[test]
fn a_wrapper_stopped_past_the_ttl_ends_the_command_when_it_wakes_up() {
    let stage = Stage::set();
    let job = stage.start(&["--ttl", "500ms", "--grace", "300ms"], &stubborn());
    let child = Stray(stage.told_pid("child"));
    job.signal(Signal::STOP);
    let token = until_some("the TTL is over", || {
        let answer = stage.server.take("job", "next", 3_600_000);
        (answer.json["acquired"] == true).then(|| answer.granted_token())
    });
    assert_eq!(token, 2, "above the token of the command");
    assert!(state(child.0).is_some(), "nobody has told the command");
    job.signal(Signal::CONT);
    assert_lost(&job.end());
    until_dead(child.0);
    assert!(stage.server.is_held("job"), "that of the other is left alone");
}

/// The command ends by itself while the wrapper is stopped. Whether it ended in time nobody knows.
#[test]
fn a_command_that_ended_during_the_pause_is_not_called_done() {
    let stage = Stage::set();
    let script = "echo $$ >pid; until [ -e go ]; do sleep 0.02; done; exit 0";
    let job = stage.start(&["--ttl", "500ms"], script);
    let pid = stage.told_pid("pid");
    job.signal(Signal::STOP);
    until_some("the TTL is over", || (!stage.server.is_held("job")).then_some(()));
    // There is nobody to tell it either.
    stage.server.signal(Signal::KILL);
    stage.tell("go");
    until_dead(pid);
    job.signal(Signal::CONT);
    assert_lost(&job.end());
}

/// Stopped by Ctrl-Z past the TTL: the command is not continued to work on, but to end.
#[test]
fn a_job_that_is_continued_too_late_is_ended() {
    let stage = Stage::set();
    let script = format!("trap 'echo x >told; exit 0' TERM; echo $$ >pid; {BUSY}");
    let job = stage.start(&["--ttl", "500ms", "--grace", "60s"], &script);
    let pid = stage.told_pid("pid");
    job.signal(Signal::TSTP);
    super::job::until_state(job.pid(), 'T');
    until_some("the TTL is over", || (!stage.server.is_held("job")).then_some(()));
    job.signal(Signal::CONT);
    assert_lost(&job.end());
    assert_eq!(stage.told("told"), "x");
    until_dead(pid);
}

/// The server has forgotten the grant, as after a release by force, and the wrapper learns it when
/// it releases.
#[test]
fn a_release_that_finds_the_lock_lost_is_a_loss() {
    let stage = Stage::set();
    let script = "echo x >up; until [ -e go ]; do sleep 0.02; done; exit 0";
    let job = stage.start(&["--ttl", "10m"], script);
    stage.told("up");
    stage.server.signal(Signal::KILL);
    let database = format!("sqlite:{}", stage.path("fresh.db").display());
    let fresh = until_some("the port is free again", || {
        Server::try_with(["--listen", &stage.server.address, "--database", &database])
    });
    stage.tell("go");
    let output = job.end();
    assert_eq!(output.status.code(), Some(76), "{output:?}");
    assert!(stderr(&output).contains("nobody holds it"), "{output:?}");
    drop(fresh);
}

/// SIGKILL for the wrapper, as by the OOM killer: the command does not outlive it.
#[test]
fn a_killed_wrapper_takes_the_command_with_it() {
    let stage = Stage::set();
    let job = stage.start(&["--ttl", "1s"], &stubborn());
    let (child, _grandchild) =
        (Stray(stage.told_pid("child")), Stray(stage.told_pid("grandchild")));
    job.signal(Signal::KILL);
    assert_eq!(job.end().status.code(), None);
    until_dead(child.0);
    // Nobody renews.
    until_some("the TTL is over", || (!stage.server.is_held("job")).then_some(()));
}

/// A way to the server that can be cut.
struct Network {
    address: String,
    swallows: Arc<AtomicBool>,
}

impl Network {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let swallows = Arc::new(AtomicBool::new(false));
        let (server, swallow) = (server.to_owned(), Arc::clone(&swallows));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                carry(client.try_clone().unwrap(), server.try_clone().unwrap(), &swallow);
                carry(server, client, &swallow);
            }
        });
        Self { address, swallows }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on nothing arrives, and nothing is closed.
    fn swallow(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, swallows: &Arc<AtomicBool>) {
    let swallows = Arc::clone(swallows);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if !swallows.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
