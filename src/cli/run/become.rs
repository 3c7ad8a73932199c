use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::super::failure::Failure;
use super::cannot_run;
use super::group::plain;

/// Becomes a command that is killed when its parent dies. For `fencing run` itself.
#[derive(Debug, Args)]
pub(in super::super) struct Become {
    /// The process id of the parent.
    parent: u32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Become {
    pub(in super::super) fn run(self) -> Result<ExitCode, Failure> {
        // A kernel that cannot do this runs the command anyway: the token does not depend on it.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // It may have died before that.
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.parent) {
            return Err(Failure::new("the parent has ended: the command is not run"));
        }
        let error = plain(&self.command).exec();
        Err(cannot_run(&self.command, &error))
    }
}
