use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// Why a command failed: one line for people.
#[derive(Debug)]
pub(super) struct Failure(String);

impl Failure {
    pub(super) fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
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
        Self(format!("{text}, {setting}=`{value}`"))
    }

    fn line(&self) -> String {
        self.0.replace(['\n', '\r'], " ")
    }

    pub(super) fn report(self) -> ExitCode {
        // There is nobody left to tell when stderr is closed.
        let _ = writeln!(std::io::stderr(), "fencing: {}", self.line());
        ExitCode::FAILURE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}
