use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use fencing::Claim;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use tokio::task::JoinHandle;

use super::super::exit;

/// How often it is looked whether the processes that the command left behind are gone.
const LOOK: Duration = Duration::from_millis(20);

/// The command, in a process group of its own.
pub(super) struct Group {
    child: Child,
    id: Pid,
    /// Done when the command has ended. It is a zombie then, so its id is still its own.
    ended: Option<JoinHandle<()>>,
}

impl Group {
    /// Must be called by the main thread: see [`under_parent`].
    pub(super) fn spawn(command: &[OsString], claim: &Claim) -> io::Result<Self> {
        let mut command = under_parent(command);
        let child = command
            .env("FENCING_RESOURCE", claim.resource().as_str())
            .env("FENCING_TOKEN", claim.token().to_string())
            // That of a lock which an outer script holds.
            .env_remove("FENCING_OWNER_TOKEN")
            .process_group(0)
            .spawn()?;
        let id = Pid::from_child(&child);
        // A thread that waits, and not SIGCHLD: whoever started us may have blocked that.
        let ended = tokio::task::spawn_blocking(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(id), options), Err(Errno::INTR)) {}
        });
        Ok(Self { child, id, ended: Some(ended) })
    }

    /// Waits until the command has ended; what it has started may live on. Nothing is lost when
    /// the future is dropped.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        if let Some(ended) = &mut self.ended {
            // When the thread could not wait, the wait below does.
            let _ = ended.await;
            self.ended = None;
        }
        // It remembers the status.
        self.child.wait()
    }

    /// Waits until every process of the group has ended.
    pub(super) async fn gone(&mut self) -> io::Result<()> {
        self.ended().await?;
        // The id cannot be given to a new group while a process is in this one.
        while test_kill_process_group(self.id).is_ok() {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.id, signal);
    }

    /// The exit code as a shell would report it.
    pub(super) fn code(status: ExitStatus) -> i32 {
        let signalled = status.signal().map(|signal| exit::SIGNALLED + signal);
        status.code().or(signalled).unwrap_or(exit::SIGNALLED)
    }
}

/// A command that is killed when this process is, where the platform can do that.
///
/// Linux can send a signal when the parent dies, or rather the thread that was the parent. The
/// process has to ask for it by itself, between fork and exec, where only unsafe code could run.
/// So this very program is started in between: it asks, and then becomes the command.
#[cfg(target_os = "linux")]
fn under_parent(command: &[OsString]) -> Command {
    // Also right when the file has been replaced by a newer version meanwhile.
    const THIS_PROGRAM: &str = "/proc/self/exe";
    if !std::path::Path::new(THIS_PROGRAM).exists() {
        return plain(command);
    }
    let mut this = Command::new(THIS_PROGRAM);
    this.arg(super::BECOME).arg(std::process::id().to_string()).arg("--").args(command);
    this
}

#[cfg(not(target_os = "linux"))]
fn under_parent(command: &[OsString]) -> Command {
    plain(command)
}

pub(super) fn plain(command: &[OsString]) -> Command {
    let (program, arguments) = match command {
        [program, arguments @ ..] => (program.as_os_str(), arguments),
        [] => (OsStr::new(""), [].as_slice()),
    };
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
