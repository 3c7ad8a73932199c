//! `fencing run` of a shell script, and what the script tells through files.

use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::process::{Guard, Server, fencing, until_some};

/// A lock server, and a folder for the scripts.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

impl Stage {
    pub(crate) fn set() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { server: Server::start(folder.path()), folder }
    }

    /// `fencing run --resource job FLAGS -- sh -c SCRIPT`, in the folder.
    pub(crate) fn command(&self, flags: &[&str], script: &str) -> Command {
        self.command_at(&self.server.url(), flags, script)
    }

    pub(crate) fn command_at(&self, url: &str, flags: &[&str], script: &str) -> Command {
        let mut command = fencing();
        command
            .args(["run", "--resource", "job", "--server", url])
            .args(flags)
            .args(["--", "sh", "-c", script])
            .env("FENCING", env!("CARGO_BIN_EXE_fencing"))
            .env("FENCING_SERVER", self.server.url())
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn start(&self, flags: &[&str], script: &str) -> Job {
        self.start_command(&mut self.command(flags, script))
    }

    pub(crate) fn start_command(&self, command: &mut Command) -> Job {
        Job(Guard::spawn(command))
    }

    pub(crate) fn run(&self, flags: &[&str], script: &str) -> Output {
        self.start(flags, script).end()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the script has written to a file, as soon as there is a whole line.
    #[track_caller]
    pub(crate) fn told(&self, name: &str) -> String {
        until_some(name, || {
            let text = std::fs::read_to_string(self.path(name)).ok()?;
            text.strip_suffix('\n').map(str::to_owned)
        })
    }

    #[track_caller]
    pub(crate) fn told_pid(&self, name: &str) -> i32 {
        self.told(name).parse().unwrap()
    }

    /// Lets a script that waits for the file go on.
    pub(crate) fn tell(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }
}

pub(crate) struct Job(Guard);

impl Job {
    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid().as_raw_nonzero().get()
    }

    pub(crate) fn end(self) -> Output {
        self.0.end()
    }
}

/// The state of a process by the letter of `ps`, `None` when it has ended.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!"ZX".contains(state)).then_some(state)
}

#[track_caller]
pub(crate) fn until_state(pid: i32, letter: char) {
    until_some(&format!("{pid} is in state {letter}"), || {
        (state(pid) == Some(letter)).then_some(())
    });
}

#[track_caller]
pub(crate) fn until_dead(pid: i32) {
    until_some(&format!("{pid} is dead"), || state(pid).is_none().then_some(()));
}

/// A process that a test has found out about, killed at its end.
pub(crate) struct Stray(pub(crate) i32);

impl Drop for Stray {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0)
            && state(self.0).is_some()
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

#[track_caller]
pub(crate) fn stderr(output: &Output) -> &str {
    let text = std::str::from_utf8(&output.stderr).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    text
}
