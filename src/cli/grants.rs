//! `fencing acquire | renew | release | show`: one request each, for scripts.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fencing::Resource;
use fencing::client::{Grant, ReleaseOutcome, RenewOutcome};
use fencing::lock::OwnerToken;
use serde_json::{Value, json};

use super::endpoint::{EndpointArgs, runtime, secret_in};
use super::exit;
use super::failure::Failure;
use super::values::{duration, duration_or_zero, resource};

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   show: nobody holds the lock
  64  the command line, a file or the URL is wrong, or the server refused what was asked for
  69  the lock service gave no usable answer, so what became of the request may not be known
  75  acquire: the lock was not had in time
  76  renew, release: the lock was lost before; another may hold it
  77  the server does not let this key do that";

const ACQUIRE_HELP: &str = "\
Example:
      lock=$(fencing acquire --resource nightly --ttl 5m --wait 10s) || exit
      eval \"$lock\"
      ./load --token \"$FENCING_TOKEN\"      # the resource must compare it
      fencing renew --ttl 5m || exit       # between steps, before the TTL is over
      ./store --token \"$FENCING_TOKEN\"
      fencing release                      # commit first, release after

Output:
  Lines for the shell to evaluate, which export FENCING_RESOURCE, FENCING_TOKEN and
  FENCING_OWNER_TOKEN; with --json one object. The owner token is the secret that renews and
  releases the lock. It is printed this once and cannot be asked for again; a file that it goes
  to should be readable by its owner only (umask 077).

  Nobody renews the lock for you. For one command under a lock use `fencing run`.
";

const OWNER_TOKEN_HELP: &str = "\
The owner token is read from the environment variable FENCING_OWNER_TOKEN or from a file. It is
never on the command line, where every user of the machine could read it.
";

/// Acquires a lock and leaves it to you.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{ACQUIRE_HELP}\n{EXIT_CODES}"))]
pub(super) struct Acquire {
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Which lock is asked for, and how.
#[derive(Debug, Args)]
pub(super) struct AskArgs {
    /// What to lock.
    #[arg(long, value_name = "NAME", value_parser = resource)]
    pub(super) resource: Resource,

    /// How long the lock lives without a renewal, such as 500ms, 30s or 5m.
    #[arg(long, env = "FENCING_TTL", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(super) ttl: Duration,

    /// How long to wait while another holds the lock or the server fails.
    #[arg(long, env = "FENCING_WAIT", value_name = "DURATION", default_value = "0s", value_parser = duration_or_zero)]
    pub(super) wait: Duration,

    /// Who takes the lock: a label for people. Host, program and process unless given.
    #[arg(long, env = "FENCING_OWNER", value_name = "LABEL")]
    pub(super) owner: Option<String>,
}

impl AskArgs {
    pub(super) fn acquire(&self, client: &fencing::client::LockClient) -> fencing::client::Acquire {
        let acquire = client.acquire(&self.resource).ttl(self.ttl).wait(self.wait);
        match &self.owner {
            Some(owner) => acquire.owner(owner),
            None => acquire,
        }
    }

    pub(super) fn not_had(&self) -> Failure {
        let (waited, resource) = (self.wait, &self.resource);
        let what = "the lock was not had in time: another holds it";
        Failure::new(format!("{what}, wait=`{waited:?}`, resource=`{resource}`"))
            .code(exit::NOT_HAD)
    }
}

impl Acquire {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let client = self.endpoint.client()?;
        runtime()?.block_on(async {
            let failed = |error| self.endpoint.failure("cannot acquire the lock", &error);
            let Some(lease) = self.ask.acquire(&client).await.map_err(failed)? else {
                if self.json {
                    say(&json!({ "acquired": false, "resource": self.ask.resource }))?;
                }
                return Err(self.ask.not_had());
            };
            let lost = |error| Failure::new(format!("lost the lock: {error}")).code(exit::LOST);
            let grant = lease.into_grant().map_err(lost)?;
            let said = if self.json { say(&grant_json(&grant)) } else { say(&for_shell(&grant)) };
            if said.is_err() {
                // Nobody else knows the owner token.
                let _ = client.release_grant(grant.claim.resource(), &grant.owner_token).await;
            }
            said.map(|()| ExitCode::SUCCESS)
        })
    }
}

fn grant_json(grant: &Grant) -> Value {
    json!({
        "acquired": true,
        "resource": grant.claim.resource(),
        "token": grant.claim.token(),
        "owner": grant.owner,
        "owner_token": grant.owner_token,
        "remaining_ms": u64::try_from(grant.remaining.as_millis()).unwrap_or(u64::MAX),
    })
}

fn for_shell(grant: &Grant) -> String {
    format!(
        "export FENCING_RESOURCE={}\nexport FENCING_TOKEN={}\nexport FENCING_OWNER_TOKEN={}",
        quoted(grant.claim.resource().as_str()),
        grant.claim.token(),
        quoted(grant.owner_token.reveal()),
    )
}

/// One word for a POSIX shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Renews a lock that `fencing acquire` has taken.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{OWNER_TOKEN_HELP}\n{EXIT_CODES}"))]
pub(super) struct Renew {
    #[command(flatten)]
    held: HeldArgs,

    /// How long the lock lives from now on; never less than it would anyway.
    #[arg(long, env = "FENCING_TTL", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    ttl: Duration,

    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Releases a lock that `fencing acquire` has taken. Commit first, release after.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{OWNER_TOKEN_HELP}\n{EXIT_CODES}"))]
pub(super) struct Release {
    #[command(flatten)]
    held: HeldArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Which grant it is about.
#[derive(Debug, Args)]
struct HeldArgs {
    /// What is locked.
    #[arg(long, env = "FENCING_RESOURCE", value_name = "NAME", value_parser = resource)]
    resource: Resource,

    /// A file with the owner token, and nothing else. FENCING_OWNER_TOKEN is read unless given.
    #[arg(long, env = "FENCING_OWNER_TOKEN_FILE", value_name = "FILE")]
    owner_token_file: Option<PathBuf>,
}

impl HeldArgs {
    fn owner_token(&self) -> Result<OwnerToken, Failure> {
        let text = match &self.owner_token_file {
            Some(file) => secret_in(file, "owner token file")?,
            None => std::env::var("FENCING_OWNER_TOKEN").map_err(|_| {
                let what = "no owner token: set FENCING_OWNER_TOKEN, or give --owner-token-file";
                Failure::new(what).code(exit::USAGE)
            })?,
        };
        text.parse().map_err(|error| Failure::new(error).code(exit::USAGE))
    }

    fn lost(&self, why: &str) -> Failure {
        Failure::new(format!("the lock was lost: {why}, resource=`{}`", self.resource))
            .code(exit::LOST)
    }
}

const NOBODY: &str = "nobody holds it";
const ANOTHER: &str = "another holds it";

impl Renew {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (client, owner_token) = (self.endpoint.client()?, self.held.owner_token()?);
        let renewal = client.renew_grant(&self.held.resource, &owner_token, self.ttl);
        let outcome = runtime()?.block_on(renewal);
        let why = match outcome
            .map_err(|error| self.endpoint.failure("cannot renew the lock", &error))?
        {
            RenewOutcome::Renewed(lock) => {
                if self.json {
                    say(&json!({ "renewed": true, "lock": lock }))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            RenewOutcome::NotHeld => NOBODY,
            RenewOutcome::NotYours => ANOTHER,
        };
        if self.json {
            say(&json!({ "renewed": false, "resource": self.held.resource, "reason": why }))?;
        }
        Err(self.held.lost(why))
    }
}

impl Release {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (client, owner_token) = (self.endpoint.client()?, self.held.owner_token()?);
        let release = client.release_grant(&self.held.resource, &owner_token);
        let outcome = runtime()?.block_on(release);
        let why = match outcome
            .map_err(|error| self.endpoint.failure("cannot release the lock", &error))?
        {
            ReleaseOutcome::Released => {
                if self.json {
                    say(&json!({ "released": true, "resource": self.held.resource }))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            ReleaseOutcome::NotHeld => NOBODY,
            ReleaseOutcome::NotYours => ANOTHER,
        };
        if self.json {
            say(&json!({ "released": false, "resource": self.held.resource, "reason": why }))?;
        }
        Err(self.held.lost(why))
    }
}

/// Shows who holds a lock: for people and dashboards, since the answer is old when it arrives.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES)]
pub(super) struct Show {
    /// Which lock.
    #[arg(long, value_name = "NAME", value_parser = resource)]
    resource: Resource,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Print JSON: the lock, or null when nobody holds it.
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let client = self.endpoint.client()?;
        let lock = runtime()?
            .block_on(client.show(&self.resource))
            .map_err(|error| self.endpoint.failure("cannot ask for the lock", &error))?;
        match &lock {
            _ if self.json => say(&json!(lock))?,
            Some(lock) => say(&format!(
                "held by {}\ntoken {}\nsince {}\nuntil {}, unless it is renewed",
                // A label of others, on a terminal.
                lock.owner.replace(char::is_control, " "),
                lock.token,
                lock.acquired_at,
                lock.expires_at
            ))?,
            None => say(&NOBODY)?,
        }
        Ok(if lock.is_some() { ExitCode::SUCCESS } else { ExitCode::from(exit::NOT_HELD) })
    }
}

fn say(what: &dyn std::fmt::Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{what}").and_then(|()| stdout.flush()).map_err(|error| {
        Failure::new(format!("cannot write to stdout: {error}")).code(exit::SYSTEM)
    })
}
