use std::error::Error as StdError;
use std::fmt;

use super::backend::{Class, NotCommitted};
use super::column::InvalidColumn;
use super::enforce::Unenforceable;
use super::migrate::{MigrateError, MigrateErrorKind};
use super::scan::InvalidSql;
use crate::{Claim, Problem, ProblemKind, Token};

/// Why a fenced transaction, a claim or an advance did not do what was asked.
///
/// [`kind`](Self::kind) says what to do about it and what is known: every kind but
/// [`OutcomeUnknown`](FenceErrorKind::OutcomeUnknown) and
/// [`PartlyApplied`](FenceErrorKind::PartlyApplied) means that nothing of this attempt was
/// applied. What it came from is the [source](StdError::source), for logs; the
/// [`Problem`] made from it, which goes to the caller of a service, has none of it.
///
/// With the feature `axum` it is a response.
#[derive(Debug)]
pub struct FenceError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: FenceErrorKind,
    claim: Option<Claim>,
    detail: Option<&'static str>,
    /// Found out by waiting for a lock as long as one may.
    waited: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What to do about a [`FenceError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FenceErrorKind {
    /// The resource has accepted a higher token. Terminal: the lease is lost, a retry cannot
    /// succeed. This attempt was certainly not applied; it says nothing about earlier ones.
    Stale {
        /// The mark, or the floor where the resource has no mark.
        last_token: Token,
    },
    /// The token turned out to be stale after something was committed under the same claim.
    PartlyApplied {
        /// The mark.
        last_token: Token,
    },
    /// Others were in the way for too long, or the database ended the transaction. Nothing was
    /// applied; a retry may succeed.
    Contended,
    /// The database did not answer, or does not take writes at this node. Nothing was applied.
    Unavailable,
    /// A commit, or a statement outside of a transaction, was sent and no verdict came back.
    OutcomeUnknown,
    /// The tables are missing or of another version, or the call contradicts itself. A retry
    /// cannot succeed.
    Misconfigured,
    /// A statement of the caller failed for a reason of its own, or the caller gave up. Nothing
    /// was applied by the transaction.
    Statement,
}

/// Where in its life a transaction was when the database answered with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Getting a connection, or a step of no consequence whose outcome is not known.
    Connect,
    /// BEGIN, the claim: nothing can have been applied.
    Claim,
    /// A statement of the caller's in a transaction of ours: nothing is applied until its commit.
    Statement,
    /// The same, by itself: it may have been applied when no verdict came back.
    Alone,
    /// The database judged COMMIT and refused it, or it was not sent.
    Refused,
}

impl FenceError {
    /// An error of the caller's own, to be returned from the closure of
    /// [`FencedTx::run`](super::FencedTx::run): the transaction is rolled back, and the error
    /// comes out as [`Statement`](FenceErrorKind::Statement) with `error` as its source.
    pub fn other(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::make(FenceErrorKind::Statement).with_source(error)
    }

    fn make(kind: FenceErrorKind) -> Self {
        Self(Box::new(Inner { kind, claim: None, detail: None, waited: false, source: None }))
    }

    fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    fn with_detail(mut self, detail: &'static str) -> Self {
        self.0.detail = Some(detail);
        self
    }

    fn with_claim(mut self, claim: &Claim) -> Self {
        self.0.claim = Some(claim.clone());
        self
    }

    /// `claim` is stale against `last_token`; `partly` when something of the request was
    /// committed before.
    pub(crate) fn stale(claim: &Claim, last_token: Token, partly: bool) -> Self {
        let kind = if partly {
            FenceErrorKind::PartlyApplied { last_token }
        } else {
            FenceErrorKind::Stale { last_token }
        };
        Self::make(kind).with_claim(claim)
    }

    pub(crate) fn misconfigured(detail: &'static str) -> Self {
        Self::make(FenceErrorKind::Misconfigured).with_detail(detail)
    }

    /// The text of a statement, an expression or a name that cannot be used.
    pub(crate) fn invalid(invalid: InvalidSql) -> Self {
        Self::misconfigured("the text given for a fenced write cannot be used: see the source")
            .with_source(invalid)
    }

    /// The column form on a column that cannot be used for it.
    pub(crate) fn invalid_column(invalid: InvalidColumn) -> Self {
        Self::misconfigured("the table given for the column form cannot be used: see the source")
            .with_source(invalid)
    }

    /// A table on which the claims cannot be enforced.
    pub(crate) fn unenforceable(unenforceable: Unenforceable) -> Self {
        Self::misconfigured("the table cannot be enforced: see the source")
            .with_source(unenforceable)
    }

    pub(crate) fn contended(detail: &'static str) -> Self {
        Self::make(FenceErrorKind::Contended).with_detail(detail)
    }

    /// An error of the database at a step of a transaction of ours.
    pub(crate) fn at(step: Step, error: sqlx::Error, claim: Option<&Claim>) -> Self {
        let class = class(&error);
        let kind = match class {
            Class::Contended | Class::TimedOut => FenceErrorKind::Contended,
            Class::Unclaimed => FenceErrorKind::Misconfigured,
            Class::Setup if step == Step::Claim => FenceErrorKind::Misconfigured,
            Class::Refused | Class::Setup if step != Step::Connect && step != Step::Claim => {
                FenceErrorKind::Statement
            }
            Class::Unknown if step == Step::Alone => FenceErrorKind::OutcomeUnknown,
            // An error the database does not list among those it knows to have applied nothing.
            Class::Other if step == Step::Alone && error.as_database_error().is_some() => {
                FenceErrorKind::OutcomeUnknown
            }
            Class::Other if matches!(step, Step::Alone | Step::Statement) => {
                FenceErrorKind::Statement
            }
            _ => FenceErrorKind::Unavailable,
        };
        let mut made = Self::make(kind).with_source(error);
        made.0.waited = class == Class::TimedOut;
        if class == Class::Unclaimed {
            made = made.with_detail(UNCLAIMED);
        }
        claim.into_iter().fold(made, |made, claim| made.with_claim(claim))
    }

    /// Why COMMIT did not succeed.
    pub(crate) fn not_committed(why: NotCommitted, claim: Option<&Claim>) -> Self {
        let made = match why {
            NotCommitted::Lost => {
                Self::contended("the database had ended the transaction before its commit")
            }
            NotCommitted::Refused(error) => return Self::at(Step::Refused, error, claim),
            NotCommitted::Unknown(error) => {
                Self::make(FenceErrorKind::OutcomeUnknown).with_source(error)
            }
        };
        claim.into_iter().fold(made, |made, claim| made.with_claim(claim))
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> FenceErrorKind {
        self.0.kind
    }

    /// The claim it is about, where it is about one.
    #[must_use]
    pub fn claim(&self) -> Option<&Claim> {
        self.0.claim.as_ref()
    }

    /// Whether the token is stale, be it at once or after a part was committed.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self.0.kind, FenceErrorKind::Stale { .. } | FenceErrorKind::PartlyApplied { .. })
    }

    pub(crate) fn is_contended(&self) -> bool {
        self.0.kind == FenceErrorKind::Contended
    }

    /// Contended, and not for having waited too long.
    pub(crate) fn is_collision(&self) -> bool {
        self.is_contended() && !self.0.waited
    }

    /// Whether the same again may succeed, without anything being applied twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, FenceErrorKind::Contended | FenceErrorKind::Unavailable)
    }
}

const UNCLAIMED: &str = "a row of an enforced table was written under another claim than its own, or \
    none: claim the resource of the row in the same transaction, before the write";

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, claim, detail, .. } = &*self.0;
        let spent = match (kind, claim) {
            (FenceErrorKind::Stale { last_token }, Some(claim)) => claim.token() == *last_token,
            _ => false,
        };
        f.write_str(detail.unwrap_or(match kind {
            FenceErrorKind::Stale { .. } if spent => {
                "the token has written before, and under the strict policy may write once: stop"
            }
            FenceErrorKind::Stale { .. } => {
                "the resource has accepted a higher token: the lease is lost, stop writing"
            }
            FenceErrorKind::PartlyApplied { .. } => {
                "a part was committed before the token became stale: stop writing and reconcile"
            }
            FenceErrorKind::Contended => {
                "others were in the way for too long, nothing was applied: try again"
            }
            FenceErrorKind::Unavailable => {
                "the database does not take writes at the moment, nothing was applied: try later"
            }
            FenceErrorKind::OutcomeUnknown => {
                "no verdict came back, the write may or may not have been applied: look before \
                 writing again"
            }
            FenceErrorKind::Misconfigured => {
                "the tables of the fence are missing, of another version or out of reach: run the \
                 migrations and check the grants"
            }
            FenceErrorKind::Statement => "a statement failed, nothing was applied",
        }))?;
        if let Some(claim) = claim {
            write!(f, " resource=`{}` token=`{}`", claim.resource(), claim.token())?;
        }
        if let FenceErrorKind::Stale { last_token } | FenceErrorKind::PartlyApplied { last_token } =
            kind
        {
            write!(f, " last_token=`{last_token}`")?;
        }
        Ok(())
    }
}

impl StdError for FenceError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// For `?` on the caller's own statements.
///
/// Nothing here knows whether the statement ran inside of a transaction, so an error of the
/// transport is [`OutcomeUnknown`](FenceErrorKind::OutcomeUnknown): outside of one it may have
/// been applied.
impl From<sqlx::Error> for FenceError {
    fn from(error: sqlx::Error) -> Self {
        let kind = match class(&error) {
            Class::Contended | Class::TimedOut => FenceErrorKind::Contended,
            Class::Unavailable => FenceErrorKind::Unavailable,
            Class::Unknown => FenceErrorKind::OutcomeUnknown,
            Class::Unclaimed => {
                return Self::misconfigured(UNCLAIMED).with_source(error);
            }
            Class::Setup | Class::Refused | Class::Other => FenceErrorKind::Statement,
        };
        Self::make(kind).with_source(error)
    }
}

impl From<MigrateError> for FenceError {
    fn from(error: MigrateError) -> Self {
        let kind = match error.kind() {
            MigrateErrorKind::Database => FenceErrorKind::Unavailable,
            _ => FenceErrorKind::Misconfigured,
        };
        Self::make(kind).with_source(error)
    }
}

impl From<&FenceError> for Problem {
    fn from(error: &FenceError) -> Self {
        let claim = error.claim();
        let kind = match error.kind() {
            FenceErrorKind::Stale { last_token } => {
                return match claim {
                    Some(claim) => Self::stale(claim, last_token),
                    None => Self::new(ProblemKind::STALE_TOKEN),
                };
            }
            FenceErrorKind::PartlyApplied { .. } => ProblemKind::PARTLY_APPLIED,
            FenceErrorKind::Contended => ProblemKind::CONTENDED,
            FenceErrorKind::Unavailable => ProblemKind::FENCE_UNAVAILABLE,
            FenceErrorKind::OutcomeUnknown => ProblemKind::OUTCOME_UNKNOWN,
            FenceErrorKind::Misconfigured => ProblemKind::MISCONFIGURED,
            FenceErrorKind::Statement => ProblemKind::WRITE_FAILED,
        };
        let problem = Self::new(kind);
        claim.into_iter().fold(problem, Self::with_claim)
    }
}

impl From<FenceError> for Problem {
    fn from(error: FenceError) -> Self {
        Self::from(&error)
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for FenceError {
    fn into_response(self) -> axum::response::Response {
        let error: &(dyn StdError + 'static) = &self;
        let problem = Problem::from(&self);
        macro_rules! refused {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    target: "fencing::sql",
                    resource = problem.resource().map(crate::Resource::as_str),
                    token = problem.token().map(i64::from),
                    last_token = problem.last_token().map(i64::from),
                    verdict = problem.kind().name(),
                    error,
                    $message
                )
            };
        }
        match self.kind() {
            FenceErrorKind::Stale { .. } | FenceErrorKind::Contended => {
                refused!(info, "a fenced write was refused");
            }
            _ => refused!(error, "a fenced write failed"),
        }
        problem.into_http()
    }
}

/// What an error of sqlx means.
pub(crate) fn class(error: &sqlx::Error) -> Class {
    use sqlx::Error;
    match error {
        Error::Database(error) => database_class(&**error),
        Error::PoolTimedOut | Error::PoolClosed => Class::Unavailable,
        Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::WorkerCrashed => Class::Unknown,
        // Our own tables have other columns than we expect.
        Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::ColumnDecode { .. }
        | Error::Configuration(_)
        | Error::RowNotFound
        | Error::InvalidSavePointStatement => Class::Setup,
        _ => Class::Other,
    }
}

fn database_class(error: &dyn sqlx::error::DatabaseError) -> Class {
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return <sqlx::Sqlite as super::backend::Backend>::class(error);
    }
    #[cfg(feature = "postgres")]
    if error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        return <sqlx::Postgres as super::backend::Backend>::class(error);
    }
    #[cfg(feature = "mysql")]
    if error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().is_some() {
        return <sqlx::MySql as super::backend::Backend>::class(error);
    }
    let _ = error;
    Class::Other
}
