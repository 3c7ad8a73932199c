use std::error::Error as StdError;
use std::fmt;

use crate::lock::StoreError;
use crate::sql::MigrateError;
use crate::sql::backend::NotCommitted;

/// A database cannot serve as a store of locks.
#[derive(Debug)]
pub struct SqlLocksError(Reason);

#[derive(Debug)]
enum Reason {
    NotDurable(String),
    Tables(MigrateError),
    Database(sqlx::Error),
}

/// What is wrong with the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SqlLocksErrorKind {
    /// It may lose what was committed, and with it the memory of tokens.
    NotDurable,
    /// The tables are missing or not those of this version.
    Tables,
    /// It did not answer, or not as it should.
    Database,
}

impl SqlLocksError {
    pub(super) fn not_durable(what: impl Into<String>) -> Self {
        Self(Reason::NotDurable(what.into()))
    }

    /// What is wrong with the database.
    #[must_use]
    pub fn kind(&self) -> SqlLocksErrorKind {
        match self.0 {
            Reason::NotDurable(_) => SqlLocksErrorKind::NotDurable,
            Reason::Tables(_) => SqlLocksErrorKind::Tables,
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
            Reason::Tables(_) => f.write_str("the tables cannot be used"),
            Reason::Database(_) => f.write_str("the database cannot be opened or queried"),
        }
    }
}

impl StdError for SqlLocksError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Reason::NotDurable(_) => None,
            Reason::Tables(error) => Some(error),
            Reason::Database(error) => Some(error),
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
        Self(Reason::Database(error))
    }
}

pub(super) fn not_committed(why: NotCommitted) -> StoreError {
    match why {
        NotCommitted::Lost => StoreError::new("the transaction had ended before its commit"),
        NotCommitted::Refused(error) | NotCommitted::Unknown(error) => StoreError::new(error),
    }
}
