//! `fencing key`: keys for the lock endpoint.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use fencing::lock::{AccessKey, Keys};

use super::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  A key for workers, its line appended to the file that `fencing serve --keys` reads:
      fencing key new worker-1 --roles lock --resources inventory: --file keys.txt >worker-1.key
      kill -HUP $(pidof fencing)

  A key that may only scrape the metrics; both parts on the terminal:
      fencing key new scraper --roles metrics --resources '*'

Output:
  With --file, the key on one line. Without it two lines: the key, and the line for the file. The
  key is shown this once; the file has its SHA-256 digest only.";

/// Makes keys for `fencing serve --keys`.
#[derive(Debug, Args)]
pub(super) struct Key {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(New),
}

/// Makes a key: prints it, and its line for the file of keys.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
struct New {
    /// A name for people and logs. It may stand in the file twice, while a key is exchanged.
    name: String,

    /// What it may be used for: lock, read, metrics, admin; several with commas.
    #[arg(long, value_name = "ROLES")]
    roles: String,

    /// What the names of its resources begin with; =NAME for one resource, * for all. May be given
    /// several times. End a prefix with what separates the parts of your names.
    #[arg(long, value_name = "PREFIX", required = true)]
    resources: Vec<String>,

    /// Appends the line to this file, which is made when it is missing.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Key {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::New(new) => new.run(),
        }
    }
}

impl New {
    #[allow(clippy::print_stdout, reason = "this is what the command is for")]
    fn run(self) -> Result<(), Failure> {
        let key = AccessKey::random()
            .map_err(|error| Failure::new(format!("the system gives no randomness: {error}")))?;
        let Self { name, roles, resources, file } = self;
        let line = format!("{name} {} {roles} {}", key.digest(), resources.join(" "));
        let fits = line.parse::<Keys>().is_ok_and(|keys| keys.len() == 1);
        if !fits || line.contains(['\n', '\r']) {
            let error = line.parse::<Keys>().err().map(|error| error.to_string());
            let why = error.as_deref().and_then(|text| text.strip_suffix(" line=`1`"));
            let why = why.unwrap_or("a name is no comment and has no line breaks");
            return Err(Failure::new(format!("no line can be made of this: {why}")));
        }
        let mut stdout = io::stdout().lock();
        let said = match &file {
            Some(path) => {
                append(path, &line).map_err(|error| {
                    Failure::of("cannot write", &error, "file", &path.display().to_string())
                })?;
                writeln!(stdout, "{}", key.reveal())
            }
            None => writeln!(stdout, "{}\n{line}", key.reveal()),
        };
        said.map_err(|error| Failure::new(format!("the key could not be printed: {error}")))
    }
}

/// Appends a line, after a line break where the file does not end in one.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let before = match std::fs::read(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        read => read.unwrap_or_default(),
    };
    let start = if before.last().is_none_or(|byte| *byte == b'\n') { "" } else { "\n" };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{start}{line}\n").as_bytes())?;
    file.sync_all()
}
