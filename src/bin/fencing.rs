//! The `fencing` program.

#[path = "../cli/mod.rs"]
mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
