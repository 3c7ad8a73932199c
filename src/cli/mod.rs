//! The commands of the `fencing` program.

mod database;
mod failure;
mod key;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fencing tokens: locks whose holders cannot do harm after they have lost them.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Key(key::Key),
    Serve(serve::Serve),
}

/// Parses the command line and runs the command. Errors are one line on stderr and exit code 1;
/// clap's own, for what is no command line, have exit code 2.
pub(crate) fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Key(key) => key.run(),
        Command::Serve(serve) => serve.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
