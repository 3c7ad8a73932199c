//! The fence inside the database: mark and protected write in one transaction.

#![allow(dead_code, reason = "the fenced transaction that uses it comes next")]

mod backend;
mod checkout;
mod error;
mod migrate;
mod options;
#[cfg(feature = "sqlite")]
mod sqlite;
mod tables;

pub use self::backend::FencedDatabase;
pub use self::error::{FenceError, FenceErrorKind};
pub use self::migrate::{MigrateError, MigrateErrorKind, Migration, migrate, migrations, verify};
pub use self::options::{FenceOptions, Isolation};
pub use self::tables::{InvalidTables, Tables};
