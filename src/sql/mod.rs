//! The fence inside the database: mark and protected write in one transaction.

mod admin;
pub(crate) mod backend;
pub(crate) mod checkout;
mod claims;
mod column;
mod enforce;
pub(crate) mod error;
mod marks;
mod migrate;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
mod options;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod retry;
mod scan;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statement;
pub(crate) mod tables;
mod tx;

pub use self::admin::{Admin, IssuerFloor, Purged, raise_floor};
pub use self::backend::FencedDatabase;
pub use self::claims::{advance, claim};
pub use self::column::{ColumnKey, ColumnMarks, ColumnOutcome, ColumnUpdate, FencedColumn};
pub use self::enforce::Enforce;
pub use self::error::{FenceError, FenceErrorKind};
pub use self::marks::SqlMarks;
pub use self::migrate::{MigrateError, MigrateErrorKind, Migration, migrate, migrations, verify};
pub use self::options::{FenceOptions, Isolation, Policy};
pub use self::scan::InvalidSql;
pub use self::statement::{Fenced, FencedTarget, Outcome, fenced};
pub use self::tables::{InvalidTables, Tables};
pub use self::tx::FencedTx;
