use std::future::Future;

use sqlx::{Connection, Pool};

use super::SqlLocksError;
use super::error::StepError;
use crate::Resource;
use crate::clock::Clock;
use crate::lock::rules::{Grant, Row};
use crate::lock::{OwnerTokenHash, Released};
use crate::sql::tables::Text;
use crate::sql::{FencedDatabase, Tables};

/// A database that can keep locks: [`Sqlite`](sqlx::Sqlite), [`Postgres`](sqlx::Postgres) and
/// [`MySql`](sqlx::MySql), each behind the feature of its name. Sealed.
pub trait LockDatabase: Backend {}

/// What differs from one database to the next. Sealed: it lies in a private module.
pub trait Backend: FencedDatabase {
    /// Whether it takes one writer at a time, so that steps had better queue in this process.
    const ONE_WRITER: bool;
    /// The statements, as templates. The implementation finds them by their place.
    const STATEMENTS: &'static [&'static str];

    /// A pool for locks alone, or a clear error at once.
    fn connect(
        options: <Self::Connection as Connection>::Options,
    ) -> impl Future<Output = Result<Pool<Self>, SqlLocksError>> + Send
    where
        Self: Sized;

    /// Fails when what was committed may be lost in a crash, or when nothing can be written.
    fn check(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), SqlLocksError>> + Send + '_;

    /// In a transaction: the floor, locked so that nobody lifts it, then the row of a resource,
    /// locked for writing, then the time, read when both locks are held. A missing row is made if
    /// `make` says so, since what is not there cannot be locked.
    fn lock<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        resource: &'a Resource,
        make: bool,
        clock: &'a dyn Clock,
    ) -> impl Future<Output = Result<Found, StepError>> + Send + 'a;

    /// The same without locks, in one statement.
    fn look<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        resource: &'a Resource,
        clock: &'a dyn Clock,
    ) -> impl Future<Output = Result<Found, StepError>> + Send + 'a;

    /// Whether it tells other servers of releases.
    const ANNOUNCES: bool = false;

    /// Tells of resources that were released by the store `origin`.
    fn announce<'a>(
        pool: &'a Pool<Self>,
        tables: &'a Tables,
        origin: &'a str,
        resources: &'a [Resource],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'a
    where
        Self: Sized,
    {
        let _ = (pool, tables, origin, resources);
        std::future::ready(Ok(()))
    }

    /// Calls `released` as [`LockStore::watch`](crate::lock::LockStore::watch) says, for the store
    /// `origin`.
    fn watch<'a>(
        pool: &'a Pool<Self>,
        tables: &'a Tables,
        origin: &'a str,
        released: Released<'a>,
    ) -> impl Future<Output = ()> + Send + 'a
    where
        Self: Sized,
    {
        let _ = (pool, tables, origin, released);
        std::future::pending()
    }

    /// Writes the locked row of a resource, unless there is one with a higher token. The commit
    /// after it is durable.
    fn write<'a>(
        conn: &'a mut Self::Connection,
        text: &'a Text,
        resource: &'a Resource,
        row: &'a Row,
    ) -> impl Future<Output = Result<(), StepError>> + Send + 'a;
}

/// What a decision is made from.
#[derive(Debug)]
pub struct Found {
    pub(super) row: Option<Row>,
    pub(super) floor: i64,
    pub(super) now: i64,
}

/// A row as it is stored: token, owner, hash, acquired_at, expires_at, hold_until, released_at.
pub(super) type Columns = (
    Option<i64>,
    Option<String>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// All of it in one row: the floor, the time, then the columns.
pub(super) type Whole = (
    i64,
    i64,
    Option<i64>,
    Option<String>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

pub(super) fn found(whole: Option<Whole>) -> Result<Found, StepError> {
    let (floor, now, token, owner, hash, acquired_at, expires_at, hold_until, released_at) =
        whole.ok_or_else(no_floor)?;
    let row = row((token, owner, hash, acquired_at, expires_at, hold_until, released_at))?;
    Ok(Found { row, floor, now })
}

pub(super) fn row(columns: Columns) -> Result<Option<Row>, StepError> {
    let (token, owner, hash, acquired_at, expires_at, hold_until, released_at) = columns;
    let Some(token) = token else { return Ok(None) };
    let grant = match (owner, hash, acquired_at, expires_at) {
        (Some(owner), Some(hash), Some(acquired_at), Some(expires_at)) => {
            let owner_token_hash = OwnerTokenHash::from_slice(&hash)
                .ok_or_else(|| StepError::other("the hash of an owner token is malformed"))?;
            Some(Grant {
                owner,
                owner_token_hash,
                acquired_at,
                expires_at,
                hold_until,
                released_at,
            })
        }
        (None, None, None, None) => None,
        _ => return Err(StepError::other("the row of a lock has half a grant")),
    };
    Ok(Some(Row { token, grant }))
}

pub(super) fn no_floor() -> StepError {
    StepError::other("the row of the floor is missing")
}

pub(super) fn higher_token() -> StepError {
    StepError::other("the row has a higher token than the one to be written, or is gone")
}

/// Binds a row to the statement that writes it, from the token on.
macro_rules! bind_row {
    ($query:expr, $row:expr) => {{
        let (row, grant) = ($row, $row.grant.as_ref());
        $query
            .bind(row.token)
            .bind(grant.map(|grant| grant.owner.as_str()))
            .bind(grant.map(|grant| grant.owner_token_hash.as_bytes().as_slice()))
            .bind(grant.map(|grant| grant.acquired_at))
            .bind(grant.map(|grant| grant.expires_at))
            .bind(grant.and_then(|grant| grant.hold_until))
            .bind(grant.and_then(|grant| grant.released_at))
    }};
}
pub(super) use bind_row;
