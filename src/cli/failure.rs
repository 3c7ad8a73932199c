use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// Why a command failed: one line for people, and an exit code for programs.
#[derive(Debug)]
pub(super) struct Failure {
    text: String,
    code: u8,
}

/// What went wrong has no exit code of its own.
const GENERAL: u8 = 1;

impl Failure {
    pub(super) fn new(what: impl fmt::Display) -> Self {
        Self { text: what.to_string(), code: GENERAL }
    }

    /// What failed, the causes of `error`, and which setting it is about.
    pub(super) fn of(what: &str, error: &dyn Error, setting: &str, value: &str) -> Self {
        let mut text = what.to_owned();
        let mut next = Some(error);
        while let Some(error) = next {
            // Some errors repeat their source.
            let cause = error.to_string();
            if !text.ends_with(&cause) {
                text = format!("{text}: {cause}");
            }
            next = error.source();
        }
        Self::new(format!("{text}, {setting}=`{value}`"))
    }

    /// Sets the exit code.
    pub(super) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    fn line(&self) -> String {
        self.text.replace(['\n', '\r'], " ")
    }

    pub(super) fn report(self) -> ExitCode {
        // There is nobody left to tell when stderr is closed.
        let _ = writeln!(std::io::stderr(), "fencing: {}", self.line());
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}
