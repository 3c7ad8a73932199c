//! Locks in a database, through sqlx.

mod backend;
mod error;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use sqlx::{Pool, SqlStr};
use tokio::sync::{Semaphore, SemaphorePermit};

pub use self::backend::LockDatabase;
pub use self::error::{SqlLocksError, SqlLocksErrorKind};
use super::rules::{self, Acquire, Ask, Refusal, Release, Row};
use super::{Acquired, Held, LockStore, OwnerTokenHash, StoreError};
use crate::clock::{Clock, SystemClock};
use crate::sql::FenceOptions;
use crate::sql::checkout::Checkout;
use crate::sql::tables::sql;
use crate::{Resource, Token};

/// How long a step waits until the other steps of this process have written, where the database
/// takes one writer at a time.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks in a database.
///
/// A step is one transaction: it locks the row of the resource and the floor, reads the clock
/// *after* it has both, decides by the [rules](super::rules), writes and commits. It answers only
/// after the commit, which is durable: the constructors refuse a database that is set up to lose
/// committed transactions.
///
/// Many processes may use the same database, and a service may keep its marks and data there as
/// well. On SQLite, where the clock is the process's own, they must run on one machine.
///
/// ```
/// use fencing::lock::{Endpoint, SqlLocks};
/// use sqlx::sqlite::SqliteConnectOptions;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # std::env::set_current_dir(&directory)?;
/// let file = SqliteConnectOptions::new().filename("fencing.db").create_if_missing(true);
/// let locks = SqlLocks::open(file).await?;
/// let app: axum::Router = axum::Router::new().nest("/locks", Endpoint::new(locks).router());
/// # Ok(())
/// # }
/// ```
pub struct SqlLocks<DB: LockDatabase> {
    pool: Pool<DB>,
    options: FenceOptions,
    text: Text,
    clock: Arc<dyn Clock>,
    turn: Option<Semaphore>,
}

/// The statements, with the names of the tables put in.
struct Text {
    /// The floor and the row of a resource, locked in a transaction that began to write.
    read: SqlStr,
    write: SqlStr,
}

impl<DB: LockDatabase> SqlLocks<DB> {
    /// Locks in the database of a pool, in the tables that [`sql::migrate`](crate::sql::migrate)
    /// has made there.
    ///
    /// # Errors
    ///
    /// [`SqlLocksError`] when the tables are not there, or when the database may lose what was
    /// committed: its message says which setting to change.
    pub async fn new(pool: Pool<DB>) -> Result<Self, SqlLocksError> {
        Self::with_options(pool, FenceOptions::new()).await
    }

    /// The same with other tables, or another time to wait for locks. Of the options, these two
    /// count here.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub async fn with_options(
        pool: Pool<DB>,
        options: FenceOptions,
    ) -> Result<Self, SqlLocksError> {
        options.verify(&pool).await?;
        let mut conn = pool.acquire().await?;
        DB::check_durability(&mut conn).await?;
        drop(conn);
        let expand = |template| sql(options.tables.expand(template, DB::QUOTE));
        Ok(Self {
            text: Text { read: expand(DB::READ), write: expand(DB::WRITE) },
            pool,
            options,
            clock: Arc::new(SystemClock),
            turn: DB::ONE_WRITER.then(|| Semaphore::new(1)),
        })
    }

    /// Where time comes from if the database has no clock of its own: on SQLite.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Begins a transaction with the row of `resource` and the floor locked.
    async fn begin(&self, resource: &Resource) -> Result<Step<'_, DB>, StoreError> {
        // In this process the steps queue here, in order, rather than at the lock of the file,
        // where the one that sleeps the shortest comes next.
        let turn = match &self.turn {
            Some(turn) => {
                let turn = tokio::time::timeout(TURN_TIMEOUT, turn.acquire()).await;
                Some(turn.map_err(StoreError::new)?.map_err(StoreError::new)?)
            }
            None => None,
        };
        let mut checkout = Checkout::acquire(&self.pool).await.map_err(StoreError::new)?;
        checkout.begin(&self.options).await.map_err(StoreError::new)?;
        let (row, floor) = DB::read(checkout.conn(), self.text.read.clone(), resource).await?;
        let now = DB::now(checkout.conn(), &*self.clock).await?;
        Ok(Step { checkout, row, floor, now, _turn: turn })
    }
}

/// A transaction in which a decision is made. Dropped, it is rolled back.
struct Step<'a, DB: LockDatabase> {
    checkout: Checkout<DB>,
    row: Option<Row>,
    floor: i64,
    /// Read after the locks were taken.
    now: i64,
    _turn: Option<SemaphorePermit<'a>>,
}

impl<DB: LockDatabase> Step<'_, DB> {
    /// Writes the row and commits durably.
    async fn write(
        mut self,
        locks: &SqlLocks<DB>,
        resource: &Resource,
        row: &Row,
    ) -> Result<(), StoreError> {
        let written =
            DB::write(self.checkout.conn(), locks.text.write.clone(), resource, row).await;
        let committed = match written {
            Ok(()) => self.checkout.commit().await.map_err(error::not_committed),
            Err(error) => Err(error),
        };
        self.checkout.finish().await;
        committed
    }

    /// Nothing is to be written.
    async fn leave(self) {
        self.checkout.finish().await;
    }
}

impl<DB: LockDatabase> LockStore for SqlLocks<DB> {
    fn acquire<'a>(
        &'a self,
        resource: &'a Resource,
        ask: &'a Ask,
    ) -> BoxFuture<'a, Result<Acquired, StoreError>> {
        Box::pin(async move {
            let mut step = self.begin(resource).await?;
            let now = step.now;
            let decision = rules::acquire(step.row.take(), step.floor, now, ask);
            match &decision {
                Acquire::Granted(row) | Acquire::Repeated(row) => {
                    step.write(self, resource, row).await?;
                }
                Acquire::Held(_) | Acquire::Spent | Acquire::Exhausted => step.leave().await,
            }
            Acquired::new(decision, now)
        })
    }

    fn renew<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Result<Held, Refusal>, StoreError>> {
        Box::pin(async move {
            let mut step = self.begin(resource).await?;
            let now = step.now;
            let (token, grant) = split(step.row.take());
            match rules::renew(grant, now, secret, ttl) {
                Ok(grant) => {
                    let row = Row { token, grant: Some(grant.clone()) };
                    step.write(self, resource, &row).await?;
                    Ok(Ok(Held::new(token, grant, now)?))
                }
                Err(refusal) => {
                    step.leave().await;
                    Ok(Err(refusal))
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
    ) -> BoxFuture<'a, Result<Result<(), Refusal>, StoreError>> {
        Box::pin(async move {
            let mut step = self.begin(resource).await?;
            let (token, grant) = split(step.row.take());
            match rules::release(grant, step.now, secret) {
                Ok(Release::Released(grant)) => {
                    step.write(self, resource, &Row { token, grant: Some(grant) }).await?;
                    Ok(Ok(()))
                }
                Ok(Release::AlreadyReleased) => {
                    step.leave().await;
                    Ok(Ok(()))
                }
                Err(refusal) => {
                    step.leave().await;
                    Ok(Err(refusal))
                }
            }
        })
    }

    fn show<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Held>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.pool.acquire().await.map_err(StoreError::new)?;
            let (row, _) = DB::read(&mut conn, self.text.read.clone(), resource).await?;
            let now = DB::now(&mut conn, &*self.clock).await?;
            rules::live(row, now).map(|(token, grant)| Held::new(token, grant, now)).transpose()
        })
    }

    fn highest_token<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Token>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.pool.acquire().await.map_err(StoreError::new)?;
            let (row, floor) = DB::read(&mut conn, self.text.read.clone(), resource).await?;
            Ok(rules::highest_token(row.as_ref(), floor))
        })
    }
}

fn split(row: Option<Row>) -> (i64, Option<rules::Grant>) {
    row.map_or((0, None), |row| (row.token, row.grant))
}

impl<DB: LockDatabase> fmt::Debug for SqlLocks<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlLocks").field("tables", &self.options.tables).finish_non_exhaustive()
    }
}
