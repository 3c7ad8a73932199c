//! `fencing run`: a command under a lease.

#[cfg(target_os = "linux")]
mod r#become;
mod group;
mod signals;

use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fencing::client::{Lease, Lost, ReleaseOutcome};
use rustix::process::{Signal, getpid, kill_process};

#[cfg(target_os = "linux")]
pub(super) use self::r#become::Become;
use self::group::Group;
use self::signals::Signals;
use super::endpoint::{EndpointArgs, runtime};
use super::exit;
use super::failure::Failure;
use super::grants::AskArgs;
use super::values::duration_or_zero;

/// The hidden command that [`Become`] is.
#[cfg(target_os = "linux")]
pub(super) const BECOME: &str = "become-command";

/// How long an interrupted acquire may take to give back what it may have been granted. The
/// server does the same when it sees the connection break.
const LINGER: Duration = Duration::from_millis(250);

const HELP: &str = "\
Examples:
  A nightly job that must not run twice, from cron on several machines:
      fencing run --resource nightly --ttl 1m -- ./nightly.sh

  Wait up to ten minutes for a deployment that is under way:
      fencing run --resource deploy:shop --wait 10m -- ./deploy.sh

The command:
  It finds FENCING_TOKEN and FENCING_RESOURCE in its environment, and passes the token on with
  every write, since the lock alone cannot stop a command that was paused past the TTL: only a
  resource that compares tokens can. Stdin, stdout and stderr are this program's own.

  It runs in a process group of its own. TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the
  group, and Ctrl-Z stops it. It does not get the terminal: a command that reads from one is
  stopped by the system.

  The lock is renewed while the command runs and released after it has ended. Processes that it
  leaves behind in its group keep the lock for the grace period; then they are ended like the
  command when the lock is lost, and the lock is released. What is meant to stay uses setsid.

When the lock is lost:
  The group gets SIGTERM, and SIGKILL after the grace period; then this program ends with 76.

  If this program itself is killed, Linux kills the command too (unless it is setuid), but not
  the processes that the command has started; other systems kill neither. What goes on then
  writes with a token that becomes stale at the next grant.

Exit codes:
  Those of the command, and 128+N when signal N has ended it. Of this program itself:
  64   the command line, the key file or the URL is wrong, or the server refused what was asked
  69   the lock service gave no usable answer within the time to wait: nothing was run
  71   the operating system refused something
  75   the lock was not had in time: another holds it, and nothing was run
  76   the lock was lost while the command ran, whatever its own exit code was
  77   the server does not let this key take the lock
  126  the command cannot be run
  127  the command is not there
  128+N  signal N came before the command was started";

/// Runs a command while holding a lock, and ends it when the lock is lost.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(super) struct Run {
    #[command(flatten)]
    ask: AskArgs,

    /// How long the command may take to end after SIGTERM, before SIGKILL.
    #[arg(long, env = "FENCING_GRACE", value_name = "DURATION", default_value = "10s", value_parser = duration_or_zero)]
    grace: Duration,

    #[command(flatten)]
    endpoint: EndpointArgs,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let runtime = runtime()?;
        let done = runtime.block_on(self.under_lease());
        runtime.shutdown_background();
        done
    }

    async fn under_lease(self) -> Result<ExitCode, Failure> {
        let client = self.endpoint.client()?;
        let system = |error: io::Error| {
            Failure::of("cannot handle signals", &error, "resource", self.ask.resource.as_str())
                .code(exit::SYSTEM)
        };
        // Before the lock is asked for: from now on none ends this process by itself.
        let mut signals = Signals::listen().map_err(system)?;

        let had = {
            let mut acquire = pin!(self.ask.acquire(&client).into_future());
            loop {
                tokio::select! {
                    had = &mut acquire => break Ok(had),
                    signal = signals.next() => match signal {
                        Signal::TSTP => stop_here(),
                        signal => break Err(signal),
                    },
                }
            }
        };
        let had = match had {
            Ok(had) => had,
            Err(signal) => {
                tokio::time::sleep(LINGER).await;
                return Ok(exit_code(exit::SIGNALLED + signal.as_raw()));
            }
        };
        let failed = |error| self.endpoint.failure("cannot acquire the lock", &error);
        let Some(lease) = had.map_err(failed)? else { return Err(self.ask.not_had()) };

        let mut group = match Group::spawn(&self.command, lease.claim()) {
            Ok(group) => group,
            Err(error) => {
                let _ = lease.release().await;
                return Err(cannot_run(&self.command, &error));
            }
        };
        let lost = Watch { lease: &lease, signals: &mut signals, grace: self.grace }
            .until_gone(&mut group)
            .await;
        let status = group.ended().await.map_err(|error| {
            Failure::new(format!("cannot wait for the command: {error}")).code(exit::SYSTEM)
        })?;
        // Only now: the command has committed what it would.
        let lost = match lost {
            Some(lost) => Some(lost.to_string()),
            None => self.release(lease, &mut signals).await,
        };
        if let Some(lost) = lost {
            let what = format!("lost the lock while the command ran: {lost}");
            return Err(Failure::new(what).code(exit::LOST));
        }
        Ok(exit_code(Group::code(status)))
    }

    /// Releases the lock; why it had been lost before, if it had.
    async fn release(&self, lease: Lease, signals: &mut Signals) -> Option<String> {
        let token = lease.token();
        let why = tokio::select! {
            released = lease.release() => match released {
                Ok(ReleaseOutcome::Released) => return None,
                Ok(ReleaseOutcome::NotHeld) => "nobody holds it",
                Ok(ReleaseOutcome::NotYours) => "another holds it",
                Err(error) => {
                    let what = "the lock could not be released, and ends by its TTL";
                    let _ = self.endpoint.failure(what, &error).report();
                    return None;
                }
            },
            // Whoever wants this to end need not wait for a server that does not answer.
            _ = signals.next() => return None,
        };
        Some(format!("{why}, resource=`{}`, token=`{token}`", self.ask.resource))
    }
}

/// What goes on while the command runs.
struct Watch<'a> {
    lease: &'a Lease,
    signals: &'a mut Signals,
    grace: Duration,
}

impl Watch<'_> {
    /// Waits until the command and what it has started are gone, and sees to it when the lease is
    /// lost; tells whether it was.
    async fn until_gone(mut self, group: &mut Group) -> Option<Lost> {
        let mut lost = pin!(self.lease.lost());
        let loss = loop {
            tokio::select! {
                biased;
                lost = &mut lost => break Some(lost),
                _ = group.ended() => break None,
                signal = self.signals.next() => self.forward(group, signal),
            }
        };
        if loss.is_none() && self.within_grace(group).await {
            return self.lost_unnoticed().await;
        }
        group.signal(Signal::TERM);
        // A process that was stopped has to run to end.
        group.signal(Signal::CONT);
        if !self.within_grace(group).await {
            group.signal(Signal::KILL);
        }
        // The command itself is waited for, however long the system takes to kill it.
        loop {
            tokio::select! {
                _ = group.ended() => break,
                signal = self.signals.next() => self.forward(group, signal),
            }
        }
        if loss.is_some() { loss } else { self.lost_unnoticed().await }
    }

    /// Waits for the group to be gone, as long as the grace period; whether it is.
    async fn within_grace(&mut self, group: &mut Group) -> bool {
        let mut over = pin!(tokio::time::sleep(self.grace));
        loop {
            tokio::select! {
                biased;
                _ = group.gone() => return true,
                () = &mut over => return false,
                signal = self.signals.next() => self.forward(group, signal),
            }
        }
    }

    /// After a pause of this process the end of the command is noticed before the end of the lease.
    async fn lost_unnoticed(&self) -> Option<Lost> {
        if self.lease.is_held() { None } else { Some(self.lease.lost().await) }
    }

    fn forward(&self, group: &Group, signal: Signal) {
        if signal != Signal::TSTP {
            group.signal(signal);
            return;
        }
        group.signal(Signal::STOP);
        stop_here();
        // Somebody has continued us. A command that has no lock any more is not continued: it
        // would work until it is told to end.
        if self.lease.is_held() {
            group.signal(Signal::CONT);
        }
    }
}

/// Stops this process as Ctrl-Z would, until somebody continues it.
fn stop_here() {
    let _ = kill_process(getpid(), Signal::STOP);
}

fn cannot_run(command: &[OsString], error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    };
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    Failure::of("cannot run the command", error, "command", &program).code(code)
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}
