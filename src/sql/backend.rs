use std::fmt;
use std::future::Future;

use sqlx::SqlStr;
use sqlx::error::{BoxDynError, DatabaseError};

use super::column::Column;
use super::enforce::Refused;
use super::scan::Dialect;
use super::statement::Shape;
use super::tables::Text;
use super::{Enforce, FenceOptions, Tables};
use crate::{Claim, Resource, Token, Verdict};

/// A database that can fence: [`Sqlite`](sqlx::Sqlite), [`Postgres`](sqlx::Postgres) and
/// [`MySql`](sqlx::MySql), each behind the feature of its name. Sealed.
pub trait FencedDatabase: Backend {}

/// What differs from one database to the next. Sealed: it lies in a private module.
pub trait Backend: sqlx::Database<Arguments: Clone + std::fmt::Debug + Sync> {
    /// What a transaction has changed on its connection, to be taken back before another gets it.
    type Session: Default + fmt::Debug + Send + Sync + Unpin + 'static;

    /// Its place in the list of texts of a [`Tables`].
    const SLOT: usize;
    /// What identifiers are quoted with.
    const QUOTE: char;
    /// How its SQL is read.
    const DIALECT: Dialect;
    /// Whether a fenced statement is one round trip: [`one_trip`](Self::one_trip).
    const ONE_TRIP: bool;
    /// The statements, as templates. The implementation finds them by their place.
    const TEMPLATES: &'static [&'static str];
    /// The migrations in order, as templates; the first has the version 1.
    const MIGRATIONS: &'static [&'static str];

    /// Begins a transaction that can write, with the bounds and isolation of `options`.
    fn begin<'a>(
        conn: &'a mut Self::Connection,
        session: &'a mut Self::Session,
        options: &'a FenceOptions,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'a;

    /// Raises the mark, in a transaction. `Accepted` means that the mark row was written by it.
    fn advance<'a>(
        conn: &'a mut Self::Connection,
        session: &'a mut Self::Session,
        text: &'a Text,
        claim: &'a Claim,
        route: Route,
    ) -> impl Future<Output = Result<Verdict, sqlx::Error>> + Send + 'a;

    /// Notes, after [`advance`](Self::advance), that the token has written; `false` when it or a
    /// higher one has before.
    fn spend<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        claim: &'a Claim,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send + 'a;

    /// Runs a statement of the caller's.
    fn perform(
        conn: &mut Self::Connection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Written, sqlx::Error>> + Send + '_;

    /// Adds an integer to the arguments of a statement.
    fn add(arguments: &mut Self::Arguments, value: i64) -> Result<(), BoxDynError>;

    /// Adds the name of a resource to the arguments of a statement.
    fn add_resource(
        arguments: &mut Self::Arguments,
        resource: &Resource,
    ) -> Result<(), BoxDynError>;

    /// Adds words of people to the arguments of a statement.
    fn add_words(arguments: &mut Self::Arguments, words: Option<&str>) -> Result<(), BoxDynError>;

    /// The resources and tokens of the rows of a query.
    fn fetch_resources(
        conn: &mut Self::Connection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Vec<(Resource, i64)>, sqlx::Error>> + Send + '_;

    /// The time, in milliseconds since the Unix epoch, by the clock of the database.
    const CLOCK_MS: &'static str;
    /// At the end of a query, locks its rows.
    const LOCK_ROW: &'static str;

    /// The first column of the first row of a query. It must not be null.
    fn fetch_number(
        conn: &mut Self::Connection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send + '_;

    /// What stands around the new mark of a row in an UPDATE, so that [`found`](Self::found) can
    /// tell whether it found the row.
    const MARKED: (&'static str, &'static str) = ("", "");
    /// At the end of a query that reads a row as it is committed.
    const READ_NEWEST: &'static str = "";

    /// Whether an UPDATE of one row found it.
    fn found(written: Written) -> bool {
        written.rows > 0
    }

    /// What is known of the column `token` of a table of the user's. `None`: it is not there.
    fn column<'a>(
        conn: &'a mut Self::Connection,
        schema: Option<&'a str>,
        table: &'a str,
        key: &'a str,
        token: &'a str,
    ) -> impl Future<Output = Result<Option<Column>, sqlx::Error>> + Send + 'a;

    /// Whether a token fits into a column of this type.
    fn is_bigint(kind: &str) -> bool {
        kind == "bigint"
    }

    /// Tries a fenced statement by itself, outside of a transaction, where
    /// [`ONE_TRIP`](Self::ONE_TRIP) says so.
    fn one_trip<'a>(
        conn: &'a mut Self::Connection,
        options: &'a FenceOptions,
        claim: &'a Claim,
        shape: &'a Shape,
        arguments: &'a Self::Arguments,
    ) -> impl Future<Output = Result<Tried, sqlx::Error>> + Send + 'a;

    /// Commits. On success and on every error but [`NotCommitted::Unknown`] the transaction has
    /// ended.
    fn commit<'a>(
        conn: &'a mut Self::Connection,
        session: &'a mut Self::Session,
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send + 'a;

    /// Rolls back whatever is open, finishes whatever is in flight, takes back what the session
    /// was given. After `Ok` the connection is as good as new.
    fn reset<'a>(
        conn: &'a mut Self::Connection,
        session: &'a mut Self::Session,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'a;

    /// Called at once when a transaction was dropped at `stage`, before anything else happens on
    /// the connection. `false`: it must be closed, [`reset`](Self::reset) would not be enough.
    fn can_reset(conn: &mut Self::Connection, stage: Stage) -> bool;

    /// The committed mark of a resource, read outside of a transaction.
    fn last_token<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send + 'a;

    /// The highest token granted of a resource; `None` or 0 when the lock tables know no grant.
    fn granted<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send + 'a;

    /// The floor; `None` without a floor row.
    fn floor<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send + 'a;

    /// The statements that make the triggers of an enforced table.
    fn enforce<'a>(
        conn: &'a mut Self::Connection,
        enforce: &'a Enforce,
    ) -> impl Future<Output = Result<Result<Vec<String>, Refused>, sqlx::Error>> + Send + 'a;

    /// The statements that drop them.
    fn unenforce<'a>(
        conn: &'a mut Self::Connection,
        enforce: &'a Enforce,
    ) -> impl Future<Output = Result<Result<Vec<String>, Refused>, sqlx::Error>> + Send + 'a;

    /// What an error of the database means.
    fn class(error: &dyn DatabaseError) -> Class;

    /// Whether `CREATE TABLE` is a part of the transaction around it.
    const TRANSACTIONAL_DDL: bool;
    /// The columns this version of the crate uses: table without prefix, column, type.
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)];

    /// Keeps other migrations of the same tables out, until the transaction or, without
    /// transactional DDL, the connection ends.
    fn lock_migrations<'a>(
        conn: &'a mut Self::Connection,
        tables: &'a Tables,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'a;

    /// The columns of the tables whose names begin with the prefix: table, column, type.
    fn columns<'a>(
        conn: &'a mut Self::Connection,
        tables: &'a Tables,
    ) -> impl Future<Output = Result<Vec<(String, String, String)>, sqlx::Error>> + Send + 'a;

    /// The versions that were applied, in order.
    fn versions<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send + 'a;

    /// Runs the statements of a migration.
    fn execute(
        conn: &mut Self::Connection,
        statements: SqlStr,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + '_;
}

/// How the message of a trigger of an enforced table begins.
pub(super) const UNCLAIMED: &str = "fencing: not claimed";

/// Which transaction [`Backend::advance`] runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// One of our own, at READ COMMITTED.
    Own,
    /// One of the caller, or one at a higher isolation.
    Foreign,
}

/// What a statement of the caller's did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The rows, as the driver counts them: on MySQL those that were found, or with `found_rows`
    /// off or behind some proxies only those that were changed.
    pub rows: u64,
    /// What it set `LAST_INSERT_ID` to, on MySQL.
    pub last_insert_id: u64,
}

/// What came of a fenced statement tried in one round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// Mark and write were applied.
    Applied {
        /// The rows of the write.
        rows: u64,
    },
    /// The claim is stale. Nothing was applied.
    Stale {
        /// What it is stale against.
        last_token: Token,
    },
    /// Others came between the snapshot of the statement and its lock. Nothing was applied.
    NotFresh,
}

/// How far a transaction of ours is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing is open and nothing in flight.
    Idle,
    /// Nothing is open, and a statement that only reads may be in flight.
    Reading,
    /// BEGIN or the settings around it are in flight.
    Beginning,
    /// It is open.
    Open,
    /// COMMIT or ROLLBACK is in flight.
    Ending,
    /// Nobody can tell.
    Broken,
}

/// Why COMMIT did not succeed.
#[derive(Debug)]
pub enum NotCommitted {
    /// The transaction had ended before, and not by us. Nothing was applied.
    Lost,
    /// The database refused it. Nothing was applied.
    Refused(sqlx::Error),
    /// No verdict came back.
    Unknown(sqlx::Error),
}

/// What an error of a database means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Others were in the way; nothing of the transaction will be applied.
    Contended,
    /// The same, found out by waiting for a lock as long as one may.
    TimedOut,
    /// It cannot serve writes at the moment, or not at this node.
    Unavailable,
    /// The connection or the server went away under the statement.
    Unknown,
    /// A table, a column or a privilege is missing.
    Setup,
    /// The database judged the statement and did not apply it.
    Refused,
    /// A trigger of an enforced table found no claim in the transaction.
    Unclaimed,
    /// Anything else.
    Other,
}
