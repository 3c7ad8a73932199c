//! The commands of the `fencing` program.

mod database;
mod endpoint;
mod exit;
mod failure;
mod grants;
mod key;
#[cfg(unix)]
mod run;
mod serve;
mod values;

use std::process::ExitCode;

use clap::error::ErrorKind;
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
    #[cfg(unix)]
    Run(run::Run),
    Acquire(grants::Acquire),
    Renew(grants::Renew),
    Release(grants::Release),
    Show(grants::Show),
    #[cfg(target_os = "linux")]
    #[command(hide = true, name = run::BECOME)]
    Become(run::Become),
}

/// Parses the command line and runs the command. Errors are one line on stderr and an exit code;
/// clap's own, for what is no command line, have exit code 2, or 64 where 2 may be that of the
/// command which is run.
pub(crate) fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => {
            tell(&error);
            return ExitCode::from(if !error.use_stderr() {
                0
            } else if std::env::args_os().nth(1).is_some_and(|name| is_for_scripts(&name)) {
                exit::USAGE
            } else {
                2
            });
        }
    };
    let done = match command {
        Command::Key(key) => key.run().map(|()| ExitCode::SUCCESS),
        Command::Serve(serve) => serve.run().map(|()| ExitCode::SUCCESS),
        #[cfg(unix)]
        Command::Run(run) => run.run(),
        Command::Acquire(acquire) => acquire.run(),
        Command::Renew(renew) => renew.run(),
        Command::Release(release) => release.run(),
        Command::Show(show) => show.run(),
        #[cfg(target_os = "linux")]
        Command::Become(command) => command.run(),
    };
    done.unwrap_or_else(failure::Failure::report)
}

/// What is no command line is told in one line, as every other failure is. Help and version are
/// errors to clap, too.
fn tell(error: &clap::Error) {
    let help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if help || !error.use_stderr() {
        // There is nobody left to tell when this fails.
        let _ = error.print();
        return;
    }
    let text = error.render().to_string();
    let said: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let said = said.join(" ");
    eprintln!("fencing: {} (see --help)", said.strip_prefix("error: ").unwrap_or(&said));
}

fn is_for_scripts(command: &std::ffi::OsStr) -> bool {
    ["run", "acquire", "renew", "release", "show"].iter().any(|name| command == *name)
}
