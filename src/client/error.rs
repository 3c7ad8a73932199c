use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;

type Source = Box<dyn StdError + Send + Sync>;

/// Why the lock endpoint gave no usable answer. That another holds a lock is none of these.
#[derive(Debug)]
pub struct ClientError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ClientErrorKind,
    message: Cow<'static, str>,
    status: Option<StatusCode>,
    problem: Option<String>,
    source: Option<Source>,
}

/// What to do about a [`ClientError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// What was asked for cannot be: a bad URL, an empty name, a TTL of zero, no tokio runtime.
    /// Nothing was sent.
    Invalid,
    /// The server refused, and would again: see [`problem`](ClientError::problem) and
    /// [`status`](ClientError::status).
    Refused,
    /// The server could not be reached or is overloaded. Nothing happened.
    Unavailable,
    /// A request was sent and no usable answer came back: it may have been served or not. An
    /// acquire that ends so has sent a release after it.
    OutcomeUnknown,
}

impl ClientError {
    pub(super) fn new(kind: ClientErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        Self(Box::new(Inner { kind, message, status: None, problem: None, source: None }))
    }

    pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ClientErrorKind::Invalid, message)
    }

    pub(super) fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub(super) fn with_answer(mut self, status: StatusCode, problem: Option<String>) -> Self {
        self.0.status = Some(status);
        self.0.problem = problem;
        self
    }

    /// The last error of several tries, one of which may have been served.
    pub(super) fn with_unknown_outcome(mut self) -> Self {
        if self.is_retryable() {
            self.0.kind = ClientErrorKind::OutcomeUnknown;
        }
        self
    }

    /// The error of a request that changes nothing, so that its outcome is not in question.
    pub(super) fn with_known_outcome(mut self) -> Self {
        if self.0.kind == ClientErrorKind::OutcomeUnknown {
            self.0.kind = ClientErrorKind::Unavailable;
        }
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ClientErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later. An acquire is safe to repeat: it draws a new owner
    /// token, and what an earlier one may have been granted has been given back.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ClientErrorKind::Unavailable | ClientErrorKind::OutcomeUnknown)
    }

    /// The HTTP status of the answer, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        self.0.status
    }

    /// The name of the problem the server answered with, such as `invalid-field`; compare it with
    /// the [`name`](crate::ProblemKind::name) of a kind.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.0.problem.as_deref()
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(status) = self.0.status {
            write!(f, ", status=`{}`", status.as_u16())?;
        }
        if let Some(problem) = &self.0.problem {
            write!(f, ", problem=`{problem}`")?;
        }
        Ok(())
    }
}

impl StdError for ClientError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
