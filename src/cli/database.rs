//! The database of a command: its URL, and what is behind it.

use std::sync::Arc;

use fencing::lock::{LockDatabase, LockStore, SqlLocks, SqlLocksError};
use futures_core::future::BoxFuture;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::failure::Failure;

/// Where something is kept, not opened yet.
pub(super) struct Database {
    shown: String,
    options: Options,
}

enum Options {
    Sqlite(Box<SqliteConnectOptions>),
    Postgres(Box<PgConnectOptions>),
    MySql(Box<MySqlConnectOptions>),
}

/// The locks in a database.
pub(super) struct Opened {
    pub(super) locks: Arc<dyn LockStore>,
    /// Closes the database.
    pub(super) close: BoxFuture<'static, ()>,
}

impl Database {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let shown = shown(url);
        let unreadable = |error: sqlx::Error| {
            Failure::of("cannot read the database url", &error, "database", &shown)
        };
        let options = match scheme(url) {
            "sqlite" => {
                let options: SqliteConnectOptions = url.parse().map_err(unreadable)?;
                // Whoever writes a mode means it: `?mode=rw` is a file that must be there.
                let says_mode = url.contains("?mode=") || url.contains("&mode=");
                let options = if says_mode { options } else { options.create_if_missing(true) };
                Options::Sqlite(Box::new(options))
            }
            "postgres" | "postgresql" => {
                let options: PgConnectOptions = url.parse().map_err(unreadable)?;
                let named = options.get_application_name().is_some();
                let options =
                    if named { options } else { options.application_name("fencing serve") };
                Options::Postgres(Box::new(options))
            }
            "mysql" | "mariadb" => {
                let options: MySqlConnectOptions = url.parse().map_err(unreadable)?;
                if options.get_database().is_none_or(str::is_empty) {
                    return Err(Failure::new(format!(
                        "no database is named: end the url in one, database=`{shown}`"
                    )));
                }
                Options::MySql(Box::new(options))
            }
            scheme => {
                return Err(Failure::new(format!(
                    "unknown kind of database: use sqlite:FILE, postgres://USER@HOST/NAME or \
                     mysql://USER@HOST/NAME, scheme=`{scheme}`"
                )));
            }
        };
        Ok(Self { shown, options })
    }

    /// Opens it for locks, and makes the tables when they are missing.
    pub(super) async fn open(self) -> Result<Opened, Failure> {
        let opened = match self.options {
            Options::Sqlite(options) => SqlLocks::open(*options).await.map(opened),
            Options::Postgres(options) => SqlLocks::open(*options).await.map(opened),
            Options::MySql(options) => SqlLocks::open(*options).await.map(opened),
        };
        opened.map_err(|error: SqlLocksError| {
            Failure::of("cannot serve", &error, "database", &self.shown)
        })
    }
}

fn opened<DB: LockDatabase>(locks: SqlLocks<DB>) -> Opened {
    let pool = locks.pool().clone();
    Opened { locks: Arc::new(locks), close: Box::pin(async move { pool.close().await }) }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

/// A URL as it may be printed. That of a server loses the password and the parameters, which may
/// have one too, and all of it if that is not to be told apart.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite")
    else {
        return match scheme(url) {
            "sqlite" => url.to_owned(),
            scheme => format!("{scheme}:..."),
        };
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // A password may have an @ or a slash in it that was not encoded: the last @ ends it.
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split([':', '/']).next().unwrap_or_default();
            format!("{scheme}://{user}@{host}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expected) in [
            ("sqlite:locks.db?mode=rw", "sqlite:locks.db?mode=rw"),
            ("postgres://app:hunter2@db:5432/locks", "postgres://app@db:5432/locks"),
            ("postgres://app@db/locks?password=hunter2", "postgres://app@db/locks"),
            ("mysql://app:hun@ter2/:x@db/locks", "mysql://app@db/locks"),
            ("mysql://:hunter2@db/locks", "mysql://@db/locks"),
            ("postgres:hunter2", "postgres:..."),
            ("hunter2", ":..."),
        ] {
            assert_eq!(shown(url), expected);
            assert!(!shown(url).contains("ter2"));
        }
    }
}
