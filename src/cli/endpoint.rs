//! Which lock service a command speaks to, and as whom.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use fencing::client::{ClientError, ClientErrorKind, LockClient};
use http::StatusCode;
use tracing_subscriber::EnvFilter;

use super::exit;
use super::failure::Failure;
use super::values::filter;

#[derive(Debug, Args)]
pub(super) struct EndpointArgs {
    /// Where the lock service is.
    #[arg(
        long,
        env = "FENCING_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:7070"
    )]
    server: String,

    /// A file with the key for the lock service, and nothing else.
    #[arg(long, env = "FENCING_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// What is logged to stderr: a level (error, warn, info, debug, trace) or filters.
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = "error", value_parser = filter)]
    log: String,
}

impl EndpointArgs {
    /// Starts the log and makes the client.
    pub(super) fn client(&self) -> Result<LockClient, Failure> {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(&self.log).map_err(Failure::new)?)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .init();
        let wrong = |error: &ClientError| self.failure("cannot use the server", error);
        let client = LockClient::new(&self.server).map_err(|error| wrong(&error))?;
        match &self.key_file {
            Some(file) => client.with_key(&secret_in(file, "key file")?).map_err(|error| {
                let name = file.display().to_string();
                Failure::of("cannot use the key", &error, "key file", &name).code(exit::USAGE)
            }),
            None => Ok(client),
        }
    }

    /// What an error of the client means for the exit code.
    pub(super) fn failure(&self, what: &str, error: &ClientError) -> Failure {
        let unauthorised = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
        let code = match error.kind() {
            ClientErrorKind::Refused
                if error.status().is_some_and(|status| unauthorised.contains(&status)) =>
            {
                exit::FORBIDDEN
            }
            ClientErrorKind::Invalid | ClientErrorKind::Refused => exit::USAGE,
            _ => exit::UNAVAILABLE,
        };
        // A URL with a password in it is an error that does not repeat it.
        let shown = if self.server.contains('@') { "<secret>" } else { &self.server };
        Failure::of(what, error, "server", shown).code(code)
    }
}

/// The one line of a file. No error repeats it.
pub(super) fn secret_in(file: &Path, what: &str) -> Result<String, Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::of(&format!("cannot read the {what}"), &error, what, &name).code(exit::USAGE)
    })?;
    match text.trim() {
        "" => Err(Failure::new(format!("the {what} is empty, {what}=`{name}`")).code(exit::USAGE)),
        secret => Ok(secret.to_owned()),
    }
}

/// A runtime on this thread alone.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(format!("cannot start the runtime: {error}")).code(exit::SYSTEM)
    })
}
