use std::future::Future;

use sqlx::SqlStr;

use super::SqlLocksError;
use crate::Resource;
use crate::clock::Clock;
use crate::lock::rules::{Grant, Row};
use crate::lock::{OwnerTokenHash, StoreError};
use crate::sql::FencedDatabase;

/// A database that can keep locks: [`Sqlite`](sqlx::Sqlite), behind the feature of its name.
/// Sealed.
pub trait LockDatabase: Backend {}

/// What differs from one database to the next. Sealed: it lies in a private module.
pub trait Backend: FencedDatabase {
    /// Whether it takes one writer at a time, so that steps had better queue in this process.
    const ONE_WRITER: bool;
    /// A template: the floor and the row of a resource. In a transaction both are locked by it.
    const READ: &'static str;
    /// A template: writes the row of a resource, unless its token is above that of the new one.
    const WRITE: &'static str;

    /// Fails when what was committed may be lost in a crash.
    fn check_durability(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), SqlLocksError>> + Send + '_;

    /// The row of a resource and the floor.
    fn read<'a>(
        conn: &'a mut Self::Connection,
        text: SqlStr,
        resource: &'a Resource,
    ) -> impl Future<Output = Result<(Option<Row>, i64), StoreError>> + Send + 'a;

    /// Milliseconds since the Unix epoch at the moment, not at the start of the transaction.
    fn now<'a>(
        conn: &'a mut Self::Connection,
        clock: &'a dyn Clock,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send + 'a;

    /// Writes the row of a resource.
    fn write<'a>(
        conn: &'a mut Self::Connection,
        text: SqlStr,
        resource: &'a Resource,
        row: &'a Row,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + 'a;
}

/// What `READ` finds: floor, token, owner, hash, acquired_at, expires_at, hold_until, released_at.
pub(super) type Found = (
    i64,
    Option<i64>,
    Option<String>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

pub(super) fn row_and_floor(found: Option<Found>) -> Result<(Option<Row>, i64), StoreError> {
    let Some((floor, token, owner, hash, acquired_at, expires_at, hold_until, released_at)) = found
    else {
        return Err(StoreError::new("the row of the floor is missing"));
    };
    let Some(token) = token else { return Ok((None, floor)) };
    let grant = match (owner, hash, acquired_at, expires_at) {
        (Some(owner), Some(hash), Some(acquired_at), Some(expires_at)) => {
            let owner_token_hash = OwnerTokenHash::from_slice(&hash)
                .ok_or_else(|| StoreError::new("the hash of an owner token is malformed"))?;
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
        _ => return Err(StoreError::new("the row of a lock has half a grant")),
    };
    Ok((Some(Row { token, grant }), floor))
}
