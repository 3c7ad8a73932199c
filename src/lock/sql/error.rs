use std::error::Error as StdError;
use std::fmt;

use crate::lock::StoreError;
use crate::sql::MigrateError;
use crate::sql::backend::{Class, NotCommitted};
use crate::sql::error::class;

/// A database cannot serve as a store of locks.
#[derive(Debug)]
pub struct SqlLocksError(Reason);

#[derive(Debug)]
enum Reason {
    NotDurable(String),
    TakesNoWrites(String),
    Tables(MigrateError),
    Denied(sqlx::Error),
    Database(Box<dyn StdError + Send + Sync>),
}

/// What is wrong with the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SqlLocksErrorKind {
    /// It may lose what was committed, and with it the memory of tokens.
    NotDurable,
    /// It is read-only: a replica, or not the node that takes writes.
    TakesNoWrites,
    /// The tables are missing or not those of this version.
    Tables,
    /// The role may not do with the tables what has to be done.
    Denied,
    /// It did not answer, or not as it should.
    Database,
}

impl SqlLocksError {
    pub(super) fn not_durable(what: impl Into<String>) -> Self {
        Self(Reason::NotDurable(what.into()))
    }

    pub(super) fn takes_no_writes(what: impl Into<String>) -> Self {
        Self(Reason::TakesNoWrites(what.into()))
    }

    /// What is wrong with the database.
    #[must_use]
    pub fn kind(&self) -> SqlLocksErrorKind {
        match self.0 {
            Reason::NotDurable(_) => SqlLocksErrorKind::NotDurable,
            Reason::TakesNoWrites(_) => SqlLocksErrorKind::TakesNoWrites,
            Reason::Tables(_) => SqlLocksErrorKind::Tables,
            Reason::Denied(_) => SqlLocksErrorKind::Denied,
            Reason::Database(_) => SqlLocksErrorKind::Database,
        }
    }
}

impl fmt::Display for SqlLocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::NotDurable(what) => {
                write!(f, "the database may forget a token it has granted: {what}")
            }
            Reason::TakesNoWrites(what) => {
                write!(f, "the database takes no writes here: {what}")
            }
            Reason::Tables(_) => f.write_str("the tables cannot be used"),
            Reason::Denied(_) => f.write_str(
                "the role lacks rights: grant it SELECT, INSERT and UPDATE on the tables",
            ),
            Reason::Database(_) => f.write_str("the database cannot be opened or queried"),
        }
    }
}

impl StdError for SqlLocksError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Reason::NotDurable(_) | Reason::TakesNoWrites(_) => None,
            Reason::Tables(error) => Some(error),
            Reason::Denied(error) => Some(error),
            Reason::Database(error) => Some(&**error),
        }
    }
}

impl From<MigrateError> for SqlLocksError {
    fn from(error: MigrateError) -> Self {
        Self(Reason::Tables(error))
    }
}

impl From<sqlx::Error> for SqlLocksError {
    fn from(error: sqlx::Error) -> Self {
        Self(Reason::Database(error.into()))
    }
}

/// From the rehearsal at start, when the tables have been found to be there.
impl From<StepError> for SqlLocksError {
    fn from(error: StepError) -> Self {
        Self(match error {
            StepError::Database(error) if class(&error) == Class::Setup => Reason::Denied(error),
            error => Reason::Database(error.into_source()),
        })
    }
}

/// Why a step was not taken, or may not have been.
#[derive(Debug)]
pub enum StepError {
    /// Before the commit. Nothing was applied.
    Database(sqlx::Error),
    /// At the commit.
    Commit(NotCommitted),
    /// What the tables hold makes no sense, or another wait than the database's was too long.
    Other(StoreError),
}

impl StepError {
    pub(super) fn other(what: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Other(StoreError::new(what))
    }

    /// Whether nothing was applied since others were in the way, and the same again may succeed
    /// soon. Whoever has waited for a lock as long as one may does not wait again.
    pub(super) fn is_collision(&self) -> bool {
        match self {
            Self::Database(error) | Self::Commit(NotCommitted::Refused(error)) => {
                class(error) == Class::Contended
            }
            Self::Commit(NotCommitted::Lost) => true,
            Self::Commit(NotCommitted::Unknown(_)) | Self::Other(_) => false,
        }
    }

    fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        match self {
            Self::Database(error)
            | Self::Commit(NotCommitted::Refused(error) | NotCommitted::Unknown(error)) => {
                error.into()
            }
            Self::Commit(NotCommitted::Lost) => {
                "the transaction had ended before its commit".into()
            }
            Self::Other(error) => error.into_source(),
        }
    }
}

impl From<sqlx::Error> for StepError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for StepError {
    fn from(error: StoreError) -> Self {
        Self::Other(error)
    }
}

impl From<StepError> for StoreError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Other(error) => error,
            error => Self::new(error.into_source()),
        }
    }
}
